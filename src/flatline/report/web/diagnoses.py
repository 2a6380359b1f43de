"""Diagnoses that are asked for on the list of runs. One is made at a time, beside the server, so
that no page waits for it. They are kept in memory: these pages write nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Lock, Thread

from flatline.diagnosis.report import Report, diagnose
from flatline.report.web.run_index import Entry, Root, told_by
from flatline.report.web.store import mark_of
from flatline.trace.importers import open_log

Mark = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A diagnosis that someone asked for, and what has come of it."""

    waits: bool = False
    """Whether it is still to be made."""
    begun: bool = False
    """Whether it is being made."""
    verdict: str = ""
    answer: str = ""
    """As the list says them; see `Entry`."""
    mark: Mark = ()
    """The state of the run that was diagnosed."""
    step: int = 0
    """Its last step."""
    current: bool = True
    """Whether the run is still in that state."""
    problem: str = ""
    """Why none could be made."""


class Diagnoses:
    """What is known of runs beyond the diagnoses kept in their folders."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._asked: dict[str, Asked] = {}
        self._lock = Lock()
        self._queue: SimpleQueue[str] = SimpleQueue()
        self._worker: Thread | None = None

    def ask(self, name: str) -> None:
        """Have a run diagnosed, unless it is about to be."""
        self._root.run(name)  # no queue for what is not here
        with self._lock:
            before = self._asked.get(name, Asked())
            if before.waits:
                return
            self._asked[name] = replace(before, waits=True, begun=False, problem="")
            self._queue.put(name)
            if self._worker is None:
                self._worker = Thread(target=self._work, daemon=True)
                self._worker.start()

    def keep(self, name: str, report: Report, mark: Mark, step: int) -> None:
        """What was found out about a run on its own page."""
        with self._lock:
            known = self._asked.get(name, Asked())
            if report.findings and not known.waits and known.mark != mark:
                self._asked[name] = _said(report, mark, step)

    def asked(self, names: Iterable[str]) -> dict[str, Asked]:
        """How the diagnoses of these runs stand."""
        with self._lock:
            known = {name: self._asked[name] for name in names if name in self._asked}
        return {
            name: replace(one, current=self._is_current(name, one)) for name, one in known.items()
        }

    def _is_current(self, name: str, one: Asked) -> bool:
        try:
            return bool(one.mark) and mark_of(self._root.folder / name) == one.mark
        except OSError:
            return False

    def _work(self) -> None:
        while True:
            name = self._queue.get()
            with self._lock:
                self._asked[name] = replace(self._asked[name], begun=True)
            found = self._made(name)
            with self._lock:
                self._asked[name] = found

    def _made(self, name: str) -> Asked:
        """With a trace of its own, so that the pages of the run need not wait."""
        try:
            path = self._root.run(name)
            mark = mark_of(path)
            trace = open_log(path)
            report = diagnose(trace, name=name)
            return _said(report, mark, int(trace.steps["step"].max()) if len(trace.steps) else 0)
        except Exception as error:  # whoever looks at the list is told
            return Asked(problem=str(error).splitlines()[0] if str(error) else repr(error))


def with_answer(entry: Entry, asked: Asked | None) -> Entry:
    """What the list says of a run: a diagnosis made here is newer than one that was kept."""
    if asked is None or not asked.verdict:
        return entry
    return replace(entry, verdict=asked.verdict, answer=asked.answer)


def _said(report: Report, mark: Mark, step: int) -> Asked:
    verdict, answer = told_by(report.to_json())
    return Asked(verdict=verdict, answer=answer, mark=mark, step=step)
