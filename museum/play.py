"""One release of one exhibit, in a process of its own: `python -m museum.play NAME FOLDER`."""

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatline.files import write_atomically
from museum.exhibit import module

if TYPE_CHECKING:
    from flatline.diagnosis.report import Report

RESULT = "result.json"
REFUSED = "refused.txt"
"""What a checkup says that it cannot be done."""
TAIL = 8
TOLD = 4
"""Alarms whose words are kept."""


def looked(trainer: Any, folder: Path) -> "dict[str, Report]":
    """Checkup, recorded training, diagnosis: all that a user of the trainer can ask. Where a
    checkup is refused in words, what it says to type instead is typed."""
    import flatline
    from flatline.errors import ConfigError

    try:
        report = {"checkup": flatline.checkup(trainer)}
    except ConfigError as error:
        report = {}
        write_atomically(folder / REFUSED, [str(error)])
    return {**report, **recorded(trainer, folder)}


def recorded(trainer: Any, folder: Path) -> "dict[str, Report]":
    """Without a checkup, which needs TRL 0.19."""
    import flatline

    flatline.attach(trainer, folder / "run")
    trainer.train()
    return {"diagnose": flatline.diagnose(flatline.Trace.open(folder / "run"))}


def play(name: str, folder: Path) -> dict[str, Any]:
    """What came of it; a release that stops is a result too."""
    begun = time.perf_counter()
    facts: dict[str, Any] = {}
    try:
        reports = module(name).run(folder)
        for look, report in reports.items():
            write_atomically(folder / f"{look}.json", [json.dumps(report.to_json(), indent=1)])
        facts |= _said(reports)
    except Exception as error:
        facts["failure"] = f"{type(error).__name__}: {error}"[:600]
        facts["tail"] = traceback.format_exc().splitlines()[-TAIL:]
    if (folder / REFUSED).is_file():
        facts["refused"] = (folder / REFUSED).read_text(encoding="utf-8")
    return facts | {"versions": _versions(), "seconds": round(time.perf_counter() - begun, 1)}


def _said(reports: "Mapping[str, Report]") -> dict[str, Any]:
    from bench.looks import brief
    from bench.merged import merged
    from bench.results import SILENT

    surest: dict[str, Any] = {}
    looks = []
    for report in reports.values():
        looks.append(_look(SILENT, report))
        surest |= {one.hypothesis: one for one in report.alarms if one.hypothesis not in surest}
    order = merged(looks)
    return {
        "alarms": [
            {"code": one.hypothesis, "name": surest[one.hypothesis].name, "level": one.level.value}
            for one in order
        ],
        "texts": [surest[one.hypothesis].text for one in order[:TOLD]],
        "looks": {name: brief(report) for name, report in reports.items()},
    }


def _look(silent: Any, report: "Report") -> Any:
    from dataclasses import replace

    return replace(silent, findings=tuple(report.alarms))


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("flatline", "torch", "trl", "transformers", "peft", "openrlhf", "verifiers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    warnings.filterwarnings("ignore")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    facts = play(name, folder)
    write_atomically(folder / RESULT, [json.dumps(facts, indent=1)])


if __name__ == "__main__":
    main()
