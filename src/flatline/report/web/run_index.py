"""Which runs, logs, experiments and journals lie under a folder, and what a list says about each.

A name from an address never becomes a path before it was checked: it is resolved inside the folder,
links included. A list reads `run.json`, the steps and a kept diagnosis, and reads again only what
changed since.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flatline.errors import FlatlineError
from flatline.files import json_in
from flatline.report.run_state import State, state_of
from flatline.trace.files import FileName
from flatline.trace.folder import RUN_FILE, Folder
from flatline.trace.frames import Frame
from flatline.trace.importers import open_log

PLAN_FILE, DIAGNOSIS_FILE = "plan.json", "diagnosis.json"
LOGS = (".json", ".jsonl", ".csv", ".wandb")
"""How the names of logs end that are shown among the runs, if they can be read."""
LARGEST = 64 * 2**20
"""Bytes of a log that is looked into only to know whether it is one."""
DEEPEST = 4
"""Folders below the start that are looked into."""
POINTS = 60
"""Of the small reward curve in the list."""
_SKIPPED = ("checkpoints", "model", "node_modules")


class NotFoundHere(FlatlineError):
    """A name that is not in the folder being shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run in the list."""

    name: str
    """Its path below the folder being shown."""
    state: State | None
    """How it stands; None where it cannot be read."""
    created: str = ""
    """When it began."""
    task: str = ""
    """Task and model, where the run says so."""
    fault: str = ""
    """What was planted in it."""
    steps: int = 0
    """Steps recorded."""
    rewards: tuple[float, ...] = ()
    """Training reward, a few dozen points."""
    verdict: str = ""
    answer: str = ""
    """Level and code of a kept diagnosis: `fault H09 loss-mask-as-attention`."""
    problem: str = ""
    """Why it cannot be read."""


class Root:
    """The folder that is shown, and nothing outside it."""

    def __init__(self, path: Path) -> None:
        path = path.resolve()
        self.alone = path.name if is_run(path) or path.is_file() else None
        """The one run that is shown, where the path is a run itself."""
        self.folder = path.parent if self.alone else path
        self._entries: dict[str, tuple[object, Entry]] = {}

    def resolve(self, name: str, *, file: bool = False) -> Path:
        """The folder of that name, or the file where one will do; raises `NotFoundHere` for all
        that is not inside."""
        parts = name.split("/")
        odd = any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts)
        if odd or (self.alone and name != self.alone):
            raise NotFoundHere(f"There is no {name!r} here.")
        try:
            path = (self.folder / name).resolve()
            there = path.is_dir() or (file and path.is_file())
            inside = path.is_relative_to(self.folder) and there
        except OSError:
            inside = False
        if not inside:
            raise NotFoundHere(f"There is no {name!r} here.")
        return path

    def run(self, name: str) -> Path:
        """The directory of a run, or the file of a log."""
        path = self.resolve(name, file=True)
        if not is_run(path) and not is_log(path):
            raise NotFoundHere(f"{name!r} holds no recorded run.")
        return path

    def name_of(self, path: Path) -> str | None:
        """The name of a recorded run by its directory; None where it is not inside."""
        try:
            name = path.resolve().relative_to(self.folder).as_posix()
            self.run(name)
        except (OSError, ValueError, NotFoundHere):
            return None
        return name

    def found(self) -> "Found":
        """Everything under the folder, by kind, in order of name."""
        if self.alone:
            return Found(runs=[self.alone], experiments=[], journals=[])
        found = Found(runs=[], experiments=[], journals=[])
        for path in _walk(self.folder, DEEPEST):
            name = path.relative_to(self.folder).as_posix()
            for kind, test in ((found.runs, is_run), (found.experiments, is_experiment)):
                if name != "." and test(path):
                    kind.append(name)
            if not is_run(path) and not is_experiment(path):
                logs = (one for one in sorted(path.iterdir()) if is_log(one))
                found.runs.extend(one.relative_to(self.folder).as_posix() for one in logs)
            if is_journal(path):
                found.journals.append("" if name == "." else name)
        return found

    def entry(self, name: str) -> Entry:
        """What the list says about a run; kept until its files change."""
        path = self.folder / name
        try:
            mark = signature(path, (RUN_FILE, DIAGNOSIS_FILE, "steps."))
        except OSError as error:
            return Entry(name=name, state=None, problem=f"It cannot be read: {error.strerror}.")
        kept = self._entries.get(name)
        if kept is None or kept[0] != mark or kept[1].state is State.RUNNING:
            kept = (mark, _entry(path, name))
            self._entries[name] = kept
        return kept[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Names below a folder."""

    runs: list[str]
    """Recorded runs."""
    experiments: list[str]
    """Folders with a registered plan."""
    journals: list[str]
    """Investigations; the empty name is the folder itself."""


def is_run(path: Path) -> bool:
    """Whether a run was recorded here."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return RUN_FILE in names or any(FileName.parse(name) for name in names)


def is_log(path: Path) -> bool:
    """Whether a file is a log that can be shown."""
    try:
        stat = path.stat()
        wanted = path.suffix.lower() in LOGS and path.is_file() and _can_be_named(path.name)
    except OSError:
        return False
    small = stat.st_size <= LARGEST
    return wanted and small and _opens(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=512)
def _opens(path: Path, size: int, when: int) -> bool:
    """Asked once of each state of a file."""
    try:
        return len(open_log(path).steps) > 0
    except FlatlineError:
        return False


def is_experiment(path: Path) -> bool:
    """Whether an experiment was registered here."""
    return (path / PLAN_FILE).is_file()


def is_journal(path: Path) -> bool:
    """Whether this is the folder of an investigation."""
    return (path / "hypotheses").is_dir() and (path / "README.md").is_file()


def signature(path: Path, starts: tuple[str, ...] = ("",)) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of the files whose names begin so: it changes when they do."""
    if path.is_file():
        return ((path.name, path.stat().st_size, path.stat().st_mtime_ns),)
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(starts) and entry.is_file():
                stat = entry.stat()
                found.append((entry.name, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(found))


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Folders, the given one first; not into runs, hidden folders or links."""
    yield folder
    if depth == 0 or is_run(folder):
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        wanted = not entry.name.startswith(".") and entry.name not in _SKIPPED
        if wanted and _can_be_named(entry.name) and entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), depth - 1)


def _can_be_named(name: str) -> bool:
    """Whether an address can hold it: some systems allow names that are not text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _log_entry(path: Path, name: str) -> Entry:
    try:
        trace = open_log(path)
    except FlatlineError as error:
        return Entry(name=name, state=None, problem=str(error).splitlines()[0])
    steps, rewards = _rewards(trace.steps)
    return Entry(name=name, state=state_of(trace.run, None), steps=steps, rewards=rewards)


def _entry(path: Path, name: str) -> Entry:
    if path.is_file():
        return _log_entry(path, name)
    try:
        folder = Folder.open(path, only=("steps",))
    except FlatlineError as error:
        return Entry(name=name, state=None, problem=str(error).splitlines()[0])
    asked = folder.run.get("requested")
    said = asked if isinstance(asked, dict) else {}
    steps, rewards = _rewards(Frame(folder.tables["steps"]))
    verdict, answer = _verdict(path)
    return Entry(
        name=name,
        state=state_of(folder.run, path),
        created=str(folder.run.get("created") or "")[:16].replace("T", " "),
        task=" · ".join(str(said[key]) for key in ("task", "model") if said.get(key)),
        fault=str(folder.run.get("fault") or ""),
        steps=steps,
        rewards=rewards,
        verdict=verdict,
        answer=answer,
    )


def _rewards(frame: Frame) -> tuple[int, tuple[float, ...]]:
    """Steps recorded, and some of the rewards, evenly chosen."""
    if not len(frame):
        return 0, ()
    steps = int((frame["step"] > 0).sum())
    if "reward" not in frame:
        return steps, ()
    known = frame["reward"][np.isfinite(frame["reward"])]
    some = np.linspace(0, len(known) - 1, min(len(known), POINTS)).round().astype(int)
    return steps, tuple(known[some].tolist())


def _verdict(path: Path) -> tuple[str, str]:
    """Of a kept diagnosis. Any program may have written the file."""
    try:
        return told_by(json_in(path / DIAGNOSIS_FILE))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "", ""


def told_by(said: Any) -> tuple[str, str]:
    """The first alarm of a diagnosis, for a search, and its answer, from the diagnosis as JSON."""
    first = said["findings"][0]
    level = str(first["level"])
    if level in ("fault", "suspect"):
        verdict = f"{level} {first['hypothesis']} {first['name']}"
    else:
        verdict = str(said.get("outcome", "not enough to tell"))  # older files say less
    return verdict, str(said.get("headline", verdict))
