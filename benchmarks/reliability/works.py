"""The work that is struck, what it claims to have completed, and how it goes on.

A claim is a line on standard output, said only after the call that completes it has returned.
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
from processes import Lost
from tests import journals

from flatline.cli import app
from flatline.errors import FlatlineError
from flatline.trace import Trace
from flatline.trace.writer import Writer

BY_HAND = "Written by hand, and nobody else's business: 4711."
READY = "ready"
H09 = "hypotheses/h09-loss-mask-as-attention.md"
ANY = (0, 1, 2, 130)
"""Exit codes of a command that is struck."""


class Work(ABC):
    """One command of flatline, or one loop that it records."""

    name: str
    trials: int
    """Of every fault."""
    span: float | None = None
    """Seconds of it in which the fault may strike; None where it ends by itself: all of it."""
    patience = 60.0
    """Seconds within which the next command must have gone on."""

    def prepare(self, folder: Path) -> None:
        """What is there before; nothing for most."""
        return

    @abstractmethod
    def do(self, folder: Path) -> None:
        """The work; says `ready`, then what it has completed."""

    @abstractmethod
    def check(self, folder: Path, claims: Sequence[str]) -> None:
        """Raise `Lost` where something that was claimed is not there."""

    @abstractmethod
    def go_on(self, folder: Path, claims: Sequence[str]) -> None:
        """The next command. What it prints is what the user reads."""

    def left(self, folder: Path) -> list[str]:
        """What was complete when the process ended, without its having said so."""
        return []

    def beside(self, folder: Path) -> None:
        """The next command while the struck process is still there, and hangs."""
        self.go_on(folder, ())


class Record(Work):
    name, trials, span = "record", 9, 0.4
    per_step = 4

    def do(self, folder: Path) -> None:
        self._write(Writer(folder / "run"), count(1))

    def _write(self, writer: Writer, steps) -> None:
        print(READY)
        for step in steps:
            places = [{"step": step, "rank": 0, "rollout": i} for i in range(self.per_step)]
            writer.write("rollouts", [{**place, "reward": 1.0} for place in places])
            writer.write("tokens", [{**place, "ids": np.arange(200)} for place in places])
            writer.write("steps", [{"step": step, "reward": 1.0}])
            writer.end_step()
            if not writer.failed:
                print(step)
            time.sleep(0.002)

    def check(self, folder: Path, claims: Sequence[str]) -> None:
        done, trace = set(map(int, claims)), Trace.open(folder / "run")
        steps, counts = np.unique(trace.rollouts["step"], return_counts=True)
        whole = set(steps[counts == self.per_step].astype(int).tolist())
        there = {
            "steps": set(trace.steps["step"].astype(int).tolist()),
            "rollouts": whole,
            "tokens": set(trace.token_steps.tolist()),
        }
        for table, found in there.items():
            if done - found:
                raise Lost(f"{table} of steps {sorted(done - found)[:5]} of {len(done)}")

    def go_on(self, folder: Path, claims: Sequence[str]) -> None:
        flatline("show", str(folder / "run"))
        last = max(map(int, claims), default=0)
        writer = Writer(folder / "run")
        self._write(writer, range(last + 1, last + 4))
        writer.close()
        self.check(folder, [*claims, *map(str, range(last + 1, last + 4))])

    def beside(self, folder: Path) -> None:
        """The folder is taken, and can be read all the same."""
        Trace.open(folder / "run")
        try:
            Writer(folder / "run")
        except FlatlineError as error:
            print(error, file=sys.stderr)
            return
        raise Lost("two processes write into one folder")


class Journal(Work):
    name, trials, span = "journal", 5, 0.8

    def prepare(self, folder: Path) -> None:
        begun(folder)

    def do(self, folder: Path) -> None:
        print(READY)
        for i in count():
            self.record(folder, f"h09-{i}")
            print(f"h09-{i}")

    def check(self, folder: Path, claims: Sequence[str]) -> None:
        check_hand(folder)
        path = folder / "journal"
        log, page = (path / "01-experiments-log.md").read_text(), (path / H09).read_text()
        for name in claims:
            results = path / "experimental-results"
            whole = json.loads((results / f"{name}.json").read_text())["name"] == name
            if not (whole and (results / f"{name}.md").exists() and name in log and name in page):
                raise Lost(f"a part of {name}")

    def go_on(self, folder: Path, claims: Sequence[str]) -> None:
        following = f"h09-{len(claims)}"  # the one that was cut off, or never begun
        self.record(folder, following)
        self.check(folder, [*claims, following])
        flatline("journal", "check", str(folder / "journal"))

    def beside(self, folder: Path) -> None:
        try:
            self.record(folder, "h09-beside")
        except FlatlineError as error:
            print(error, file=sys.stderr)

    def record(self, folder: Path, name: str) -> None:
        from flatline.journal import Journal, record

        made = journals.plan_of(name), journals.result_of(), journals.verdict_of()
        record(Journal.open(folder / "journal"), *made, journals.curves_of(steps=9))


def begun(folder: Path) -> None:
    """A journal with a line of the user's at the end of every file."""
    journals.journal_at(folder / "journal")
    pages = sorted((folder / "journal").rglob("*.md"))
    for file in pages:
        file.write_text(f"{file.read_text()}\n{BY_HAND}\n")
    (folder / "by-hand").write_text("\n".join(map(str, pages)))


def check_hand(folder: Path) -> None:
    """The lines of the user's are where they were."""
    for name in (folder / "by-hand").read_text().splitlines():
        if BY_HAND not in Path(name).read_text(encoding="utf-8"):
            raise Lost(f"the line that was written by hand in {name}")


def flatline(*words: str, expected: Sequence[int] = (0, 1)) -> None:
    """The command line, in this process; 0 and 1 are answers."""
    try:
        app(list(words), prog_name="flatline")
    except SystemExit as error:
        if (error.code or 0) not in expected:
            raise Lost(f"flatline {words[0]} ended with exit code {error.code}") from None
