"""What flatline says of scripts that other people could have written on stock TRL.

    python benchmarks/strangers.py [NAME ...]         # ask, print a row for each script, keep it
    python benchmarks/strangers.py --table            # docs/strangers.md: no training
    python benchmarks/strangers.py --said NAME        # all that was said of one script
    python benchmarks/strangers.py --round third ...  # of another round than the first

Each script is given a checkup before it trains, then recorded while it trains, then diagnosed.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

import flatline
from flatline.errors import FlatlineError

PARTS = ("checkup", "diagnosis")
KEPT = Path(__file__).parents[1] / "docs" / "strangers"
KINDS = {
    "healthy": "healthy",
    "faulty": "faulty",
    "second": "more healthy",
    "third": "further healthy",
    "third-faulty": "further faulty",
    "fourth": "again healthy",
    "fourth-faulty": "again faulty",
    "fifth": "new healthy",
    "fifth-faulty": "new faulty",
    "sixth": "newest healthy",
    "sixth-faulty": "newest faulty",
    "seventh": "latest healthy",
    "seventh-faulty": "latest faulty",
    "eighth": "last healthy",
    "eighth-faulty": "last faulty",
    "ninth": "final healthy",
    "ninth-faulty": "final faulty",
    "tenth": "tenth healthy",
    "tenth-faulty": "tenth faulty",
}
"""Parts of `judged.json`, in words."""
MODULES = {
    "first": ("healthy", "faulty"),
    "second": ("second",),
    "third": ("third", "third_faulty"),
    "fourth": ("fourth", "fourth_faulty"),
}
"""Rounds whose scripts are functions of modules, by what follows `strangers_`."""
IN_FILES = ("fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
"""Rounds whose scripts are files of their own."""
SHARED = ("material", "kit")
"""What the scripts of a folder share."""


def asked(name: str, script: Any) -> dict[str, Any]:
    """What a checkup and the diagnosis of a short training say of one script."""
    torch.manual_seed(0)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        checkup = said_by(lambda: checked(script()))
        torch.manual_seed(0)
        diagnosis = said_by(lambda: trained_and_diagnosed(script()))
    return {"script": name, "checkup": checkup, "diagnosis": diagnosis}


@functools.singledispatch
def checked(trainer: Any) -> Any:
    """A checkup of what a script makes: a trainer, if nothing else is registered for it."""
    return flatline.checkup(trainer)


@functools.singledispatch
def recorded(trainer: Any, run: str) -> None:
    """Trains what a script makes, and records it as its author would."""
    flatline.attach(trainer, run)
    trainer.train()


def trained_and_diagnosed(made: Any) -> Any:
    run = tempfile.mkdtemp(prefix="stranger-run-")
    recorded(made, run)
    return flatline.diagnose(run)


def said_by(ask: Any) -> dict[str, Any]:
    """What a report says, as far as it is looked at here; or the traceback in its place."""
    begun = time.perf_counter()
    try:
        report = ask()
    except FlatlineError as error:
        return {"outcome": "refused in words", "text": str(error), "alarms": []}
    except Exception:  # what a user would see is what is kept
        return {"outcome": "traceback", "text": traceback.format_exc(), "alarms": []}
    found = report.to_json()
    return {
        "outcome": found["outcome"],
        "seconds": round(time.perf_counter() - begun, 1),
        "alarms": [
            {key: one[key] for key in ("hypothesis", "name", "level", "headline", "text")}
            for one in report_alarms(found)
        ],
        "unknown": {
            one["hypothesis"]: one["text"] for one in found["findings"] if one["level"] == "unknown"
        },
        "notes": {
            one["hypothesis"]: one["text"] for one in found["findings"] if one["level"] == "note"
        },
        "text": str(report),
    }


def report_alarms(found: dict[str, Any]) -> list[dict[str, Any]]:
    every = [*found["findings"], *found["troubles"]]
    return [one for one in every if one["level"] in ("fault", "suspect")]


def alarms_of(kept: dict[str, Any] | None, part: str) -> str:
    """The causes of one answer, the first one first; its outcome where there is none."""
    if kept is None:
        return "not asked"
    found = [f"{one['hypothesis']} {one['level']}" for one in kept[part]["alarms"]]
    return ", ".join(found) or kept[part]["outcome"]


def read(folder: Path, name: str) -> dict[str, Any] | None:
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def row(kept: dict[str, Any]) -> str:
    seconds = kept["checkup"].get("seconds", 0)
    cells = (kept["script"], *(alarms_of(kept, part) for part in PARTS), f"{seconds:.0f}")
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True)
class Round:
    """Scripts that were written and asked about together."""

    scripts: dict[str, Any]
    kinds: tuple[str, ...]
    """Their parts of `judged.json`."""
    first: Path
    """What was said at first, which stays."""
    now: Path
    """What is said now, of those that were asked again."""


def table(asked_together: Round) -> None:
    """Every script: what was said at first, and of those that were asked again what is said now."""
    judged = json.loads((KEPT / "judged.json").read_text())
    words = {name: word for kind in asked_together.kinds for name, word in judged[kind].items()}
    print("| script | checkup, first | diagnosis, first | judged | checkup, now | diagnosis, now |")
    print("|---|---|---|---|---|---|")
    for name in asked_together.scripts:
        both = [read(folder, name) for folder in (asked_together.first, asked_together.now)]
        said = [alarms_of(kept, part) for kept in both for part in PARTS]
        print(f"| {' | '.join([name, *said[:2], words.get(name, ''), *said[2:]])} |")
    for kind in asked_together.kinds:
        found = list(judged[kind].values())
        counts = "; ".join(f"{found.count(word)} {word}" for word in sorted(set(found)))
        print(f"\n{len(found)} {KINDS[kind]} scripts at first: {counts}.")


def round_called(name: str) -> Round:
    """One of the rounds; the others' scripts are not imported."""
    kinds = ("healthy", "faulty") if name == "first" else (name, f"{name}-faulty")
    if name in IN_FILES:
        scripts = scripts_in(name, "healthy") | scripts_in(name, "faulty")
    else:
        importlib.import_module("strangers_second")  # it also says how loops are asked
        made = [importlib.import_module(f"strangers_{part}") for part in MODULES[name]]
        scripts = {script: make for module in made for script, make in module.SCRIPTS.items()}
    now = KEPT / ("now" if name == "first" else f"{name}-now")
    return Round(scripts, tuple(kind for kind in kinds if kind in KINDS), KEPT / name, now)


@dataclass(frozen=True, slots=True)
class WatchedLoop:
    """A loop in a file: all that its author gives is where it makes its optimizer."""

    train: Any


@dataclass(frozen=True, slots=True)
class OwnWatch:
    """A loop in a file that watches itself."""

    train: Any


@checked.register(WatchedLoop | OwnWatch)
def _(made: Any) -> Any:
    raise FlatlineError("A loop that is only watched has no checkup.")


@recorded.register
def _(made: WatchedLoop, run: str) -> None:
    with contextlib.ExitStack() as watches:
        made.train(lambda *held: watches.enter_context(flatline.watch(*held, run)))


@recorded.register
def _(made: OwnWatch, run: str) -> None:
    made.train(run)


def scripts_in(name: str, folder: str) -> dict[str, Any]:
    """Scripts of a round, each a file: `build` makes a trainer, `loop` and `train` train by
    themselves."""
    place = Path(__file__).parent / f"strangers_{name}" / folder
    files = sorted(set(place.glob("*.py")) - {place / f"{shared}.py" for shared in SHARED})
    return {file.stem.replace("_", "-"): functools.partial(made_by, file) for file in files}


def made_by(file: Path) -> Any:
    for shared in SHARED:
        sys.modules.pop(shared, None)  # each folder has its own
    sys.path.insert(0, str(file.parent))
    try:
        script = importlib.import_module(file.stem)
    finally:
        sys.path.pop(0)
    if hasattr(script, "build"):
        return script.build()
    return OwnWatch(script.train) if hasattr(script, "train") else WatchedLoop(script.loop)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--round", choices=(*MODULES, *IN_FILES), default="first")
    parser.add_argument("--keep", type=Path, help="folder of the answers")
    parser.add_argument("--table", action="store_true", help="from what is kept: no training")
    parser.add_argument("--said", help="all that was said of one script")
    chosen = parser.parse_args()
    asked_together = round_called(chosen.round)
    folder = chosen.keep or asked_together.now
    if chosen.table:
        table(asked_together)
    elif chosen.said:
        kept = json.loads((folder / f"{chosen.said}.json").read_text())
        print(*(kept[part]["text"] for part in PARTS), sep="\n\n----\n\n")
    else:
        ask(chosen.names or list(asked_together.scripts), asked_together.scripts, folder)


def ask(names: list[str], scripts: dict[str, Any], folder: Path) -> None:
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    print("| script | checkup | diagnosis | seconds |\n|---|---|---|---|")
    for name in names:
        found = asked(name, scripts[name])
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text)
        print(row(found), flush=True)


if __name__ == "__main__":
    import strangers  # under the name by which others register how they are asked

    strangers.main()
