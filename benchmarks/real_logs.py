"""What flatline and rldoctor say about real logs: the figures of docs/log-readings.md.

    python benchmarks/real_logs.py FOLDER [--rldoctor rl-doctor] [--compact FILE]
    python benchmarks/real_logs.py FOLDER --readings docs/real-logs

FOLDER holds logs of other people's GRPO runs, which are not part of the project. `--rldoctor` is
the command of rldoctor 0.2.0 in an environment of its own. `--compact` keeps the numbers that
hypotheses read, to four digits, as tests/fixtures/real_logs.json does. `--readings` puts what a
careful reader saw (`readings.json`, written before flatline was asked) beside what flatline says;
what was seen counts as said where its pattern is found in the answer.
"""

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from flatline.diagnosis.report import Report, diagnose
from flatline.files import write_atomically
from flatline.remarks import SHOWN
from flatline.trace.importers import open_log

KEPT = (
    "step",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "loss",
    "grad_norm",
    "learning_rate",
    "completion_length",
    "completions/mean_length",
    "completions/clipped_ratio",
    "clip_ratio/region_mean",
    "eval_reward",
)
"""Metrics that a hypothesis reads from a log."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rldoctor", help="its command; left out where absent")
    parser.add_argument("--compact", type=Path, help="write the figures here")
    parser.add_argument("--readings", type=Path, help="the folder of made logs and readings.json")
    options = parser.parse_args()
    if options.readings:
        return print_readings(options.readings, options.folder)
    files = sorted(options.folder.iterdir())
    if options.compact:
        write_atomically(options.compact, [json.dumps({f.name: compact(f) for f in files})])
    print("| log | training reward | flatline | rldoctor |\n|---|---|---|---|")
    for file in files:
        report = diagnose(open_log(file))
        peer = asked(options.rldoctor, file) if options.rldoctor else "not asked"
        print(f"| {file.name} | {trend(report)} | {causes(report)} | {peer} |")
    return 0


def print_readings(made: Path, others: Path) -> int:
    """One row for each log; what was not said is struck out."""
    readings = json.loads((made / "readings.json").read_text())
    print("| log | a careful reader sees | said | flatline says |\n|---|---|---|---|")
    said, seen = 0, 0
    for name, kept in readings.items():
        path = made / name if (made / name).is_file() else others / name
        found = said_of(path, kept["reader"])
        said, seen = said + sum(found), seen + len(found)
        reader = [one["sees"] for one in kept["reader"]]
        listed = [text if yes else f"~~{text}~~" for text, yes in zip(reader, found, strict=True)]
        look = kept.get("first_look")
        first = f" (first look: {look['said']})" if look else ""
        cells = (name, "<br>".join(listed), f"{sum(found)} of {len(found)}{first}")
        print(f"| {' | '.join(cells)} | {'<br>'.join(_told(path))} |")
    print(f"\nSaid: {said} of {seen} ({said / seen:.0%}).")
    return 0


def said_of(path: Path, readings: list[dict[str, str]]) -> list[bool]:
    """Which of the things that a reader saw are said."""
    text = " ".join(_told(path))
    return [re.search(one["said"], text, re.S | re.I) is not None for one in readings]


def _told(path: Path) -> list[str]:
    """What is shown without `--all`."""
    report = diagnose(open_log(path))
    notes = [one.text for one in report.findings if one.level == "note"]
    others = [one.text for one in report.alarms]
    told = [report.summary, *others, *notes, *report.caveats, *report.remarks[:SHOWN]]
    return [text.replace("|", "\\|") for text in dict.fromkeys(told)]


def trend(report: Report) -> str:
    return report.trend.text.removeprefix("The training reward ") if report.trend else ""


def causes(report: Report) -> str:
    told = [f"{one.hypothesis} {one.name}: {one.text}" for one in report.alarms]
    tested = f"{report.tested} of {len(report.findings)} tested"
    return " ".join(told) or f"{report.outcome.value} ({tested})"


def asked(command: str, file: Path) -> str:
    """Warnings and worse, in the tool's own words."""
    found = subprocess.run(
        [command, "diagnose", str(file), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = [
        f"{one['detector']} ({one['severity'].lower()}): {one['summary']}"
        for one in json.loads(found.stdout)["findings"]
        if one["severity"] in ("WARNING", "CRITICAL")
    ]
    return " ".join(told) or "nothing"


def compact(file: Path) -> dict[str, Any]:
    """The rows by column; `logging_steps` where the file says it."""
    text = file.read_text(encoding="utf-8")
    data: Any = (
        [json.loads(line) for line in text.splitlines() if line.strip()]
        if file.suffix == ".jsonl"
        else json.loads(text)
    )
    rows = data["log_history"] if isinstance(data, dict) else data
    names = [name for name in KEPT if any(name in row for row in rows)]
    columns = {name: [_short(row.get(name)) for row in rows] for name in names}
    return {"logging_steps": data.get("logging_steps") if isinstance(data, dict) else None} | {
        "columns": columns
    }


def _short(value: Any) -> Any:
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return float(f"{value:.4g}")


if __name__ == "__main__":
    sys.exit(main())
