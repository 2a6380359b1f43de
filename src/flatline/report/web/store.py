"""Opened runs, kept while their files stay the same.

Two browsers ask at once, and the readers of a trace are not made for that: whoever works with a run
holds it.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from flatline.diagnosis.report import Report, diagnose
from flatline.report.web.run_index import signature
from flatline.trace import Trace
from flatline.trace.folder import RUN_FILE
from flatline.trace.importers import open_log
from flatline.trace.schema import TABLES

KEPT = 6
"""Runs that are kept open; a large one holds some hundred megabytes."""
SHARE = 0.1
"""Of the time of a running run that its diagnosis may take: a slow one is repeated less often."""
_FILES = (RUN_FILE, "recording.", *(f"{table}." for table in TABLES))


@dataclass(slots=True, kw_only=True)
class Opened:
    """One run, and what is known about it."""

    path: Path
    """Its directory, or the file of a log."""
    mark: tuple[tuple[str, int, int], ...]
    """Signature of its files when it was opened."""
    trace: Trace
    """What was recorded."""
    report: Report | None = None
    """Its diagnosis, perhaps of some steps ago."""
    diagnosed: tuple[tuple[str, int, int], ...] | None = None
    """Signature of the files that were diagnosed."""
    when: float = 0.0
    """When that was."""
    took: float = 0.0
    """Seconds it took."""
    made: tuple[object, dict[str, Any]] | None = None
    """The content of its page, and of which state of the run."""
    maker: Thread | None = None
    """Makes that content, where it takes long."""
    problem: Exception | None = None
    """Why it could not be made."""
    lock: Lock = field(default_factory=Lock)
    """Held by whoever works with it."""

    @property
    def folder(self) -> Path | None:
        """Its directory; None where it is a log."""
        return self.path if self.path.is_dir() else None

    def diagnosis(self, name: str, *, patient: bool) -> Report:
        """What is found; where one is `patient`, as with a running run, it may be a little old."""
        old = self.diagnosed != self.mark
        due = not patient or time.monotonic() - self.when > self.took / SHARE
        if self.report is None or (old and due):
            began = time.monotonic()
            self.report = diagnose(self.trace, name=name)
            self.when = time.monotonic()
            self.took, self.diagnosed = self.when - began, self.mark
        return self.report


class Store:
    """The runs that were looked at last."""

    def __init__(self) -> None:
        self._runs: OrderedDict[Path, Opened] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def hold(self, path: Path) -> Iterator[Opened]:
        """A run as it is now, for one reader at a time."""
        mark = mark_of(path)
        with self._lock:
            known = self._runs.get(path)
        # Opened while no lock is held: a disk that does not answer stops this reader alone.
        same = known is not None and known.mark == mark
        fresh = None if same else Opened(path=path, mark=mark, trace=open_log(path))
        run = self._kept(path, known or fresh)
        with run.lock:
            if fresh is not None and run.mark != mark:
                run.trace, run.mark = fresh.trace, mark
            yield run

    @contextmanager
    def hold_all(self, paths: Sequence[Path]) -> Iterator[list[Opened]]:
        """Several runs, taken in one order, so that two readers never wait for each other."""
        with ExitStack() as stack:
            held = {path: stack.enter_context(self.hold(path)) for path in sorted(set(paths))}
            yield [held[path] for path in paths]

    def _kept(self, path: Path, new: Opened | None) -> Opened:
        """The run as the store has it, else `new`; those not looked at for longest are let go."""
        with self._lock:
            run = self._runs.get(path) or new
            assert run is not None
            self._runs[path] = run
            self._runs.move_to_end(path)
            while len(self._runs) > KEPT:
                self._runs.popitem(last=False)
        return run


def mark_of(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes whenever the recorded files of a run do."""
    return signature(path, _FILES)
