"""One piece of a step, followed statement by statement: what each read, wrote and returned."""

import linecache
import sys
from collections import Counter, UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from flatline.live.where.package import TRL, in_library, package_of
from flatline.live.where.statements import Path, Statement, statements
from flatline.live.where.values import Copies, Value

MOST_TIMES = 200
"""How often one statement is looked at: a loop of a reward function may run for ever."""
RETURNED: Path = ("return",)
"""Under this a statement writes what its function gives back."""
_PARTS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>")
"""Frames that are parts of a statement, or no function."""


class CannotFollow(Exception):
    """Why a step cannot be followed, in words."""


@dataclass(eq=False, slots=True)
class Event:
    """One statement, run once."""

    number: int
    statement: Statement
    function: str
    frame: int
    """Number of the call that it was run in."""
    parent: "Event | None"
    """The statement that called this function."""
    reads: dict[Path, Value]
    writes: dict[Path, Value] = field(default_factory=dict)
    calls: list["Event"] = field(default_factory=list)
    """Statements that returned to this one."""
    ended: int = 0
    """When it was over: a statement that calls others begins before them and ends after them."""


@dataclass(slots=True)
class _Running:
    number: int
    parent: Event | None
    now: Event | None = None
    left: Event | None = None
    """The `return` that ran last: a `with` around it is closed before the function is left."""


class Follower:
    """A trace function for some files; `events` is what it saw."""

    def __init__(self, also: str = "") -> None:
        """`also` is a file of a library that is followed as well."""
        self.events: list[Event] = []
        self.copies = Copies()
        self._running: dict[FrameType, _Running] = {}
        self._times: Counter[tuple[CodeType, int]] = Counter()
        self._followed: dict[str, bool] = {also: True}
        self._calls = self._ended = 0

    @contextmanager
    def following(self) -> Iterator[None]:
        """What runs inside is followed, in this thread."""
        if sys.gettrace() is not None:
            raise CannotFollow("a debugger or a coverage tool is following the code already")
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(None)
            self._running.clear()

    def now(self) -> Event | None:
        """The statement that runs."""
        return max(
            (one.now for one in self._running.values() if one.now), key=_number, default=None
        )

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self._followed:
            self._followed[file] = follows(file)
        if not self._followed[file] or frame.f_code.co_name in _PARTS:
            return None
        if frame not in self._running:
            self._calls += 1
            self._running[frame] = _Running(self._calls, self._caller(frame))
        return self._inside

    def _caller(self, frame: FrameType) -> Event | None:
        above = frame.f_back
        while above is not None:
            if above in self._running:
                return self._running[above].now
            above = above.f_back
        return None

    def _inside(self, frame: FrameType, event: str, arg: Any) -> Any:
        running = self._running.get(frame)
        if running is None:
            return None
        if event == "line":
            self._line(frame, running)
        elif event == "return":
            self._returned(frame, running, arg)
        return self._inside

    def _line(self, frame: FrameType, running: _Running) -> None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        statement = statements(file).get(line)
        if running.now is not None and running.now.statement is statement:
            return
        running.left = _returning(running.now)
        self._close(frame, running)
        if statement is None:
            return
        self._times[frame.f_code, line] += 1
        if self._times[frame.f_code, line] > MOST_TIMES:
            return
        running.now = Event(
            number=len(self.events),
            statement=statement,
            function=frame.f_code.co_qualname.replace(".<locals>", ""),
            frame=running.number,
            parent=running.parent,
            reads=self._values(frame, statement.reads),
        )
        self.events.append(running.now)

    def _close(self, frame: FrameType, running: _Running) -> None:
        """What the statement that has just run wrote, and what of the things it read is changed."""
        done, running.now = running.now, None
        if done is None:
            return
        self._ended += 1
        done.ended = self._ended
        done.writes |= self._values(frame, done.statement.writes)
        for path, value in self._values(frame, done.statement.reads).items():
            if path in done.reads and done.reads[path].key != value.key:
                done.writes[path] = value

    def _returned(self, frame: FrameType, running: _Running, result: Any) -> None:
        last = running.left or running.now
        self._close(frame, running)
        if last is not None:
            value = self.copies.of(result)
            if value is not None:
                last.writes[RETURNED] = value
            if running.parent is not None:
                running.parent.calls.append(last)
        if not frame.f_code.co_flags & 0x20:  # a generator goes on
            del self._running[frame]

    def _values(self, frame: FrameType, paths: tuple[Path, ...]) -> dict[Path, Value]:
        local = frame.f_locals
        found = {}
        for path in paths:
            if path[0] in local:
                value = self.copies.of(_reached(local[path[0]], path[1:]))
                if value is not None:
                    found[path] = value
        return found


def _returning(event: Event | None) -> Event | None:
    return event if event is not None and event.statement.kind == "Return" else None


def _number(event: Event) -> int:
    return event.number


_NOTHING = object()


def _reached(thing: Any, steps: Path) -> Any:
    """Follows attributes that are plainly there and keys of plain dicts: nothing is computed."""
    for step in steps:
        if step.startswith("."):
            kept = getattr(thing, "__dict__", None)
            thing = kept.get(step[1:], _NOTHING) if isinstance(kept, dict) else _NOTHING
        else:
            thing = thing.data if isinstance(thing, UserDict) else thing
            named = thing if type(thing) is dict else {}
            thing = named.get(step[1:-1], _NOTHING)
        if thing is _NOTHING:
            return _NOTHING
    return thing


def follows(file: str) -> bool:
    """TRL's files and those that are no library's: the user's own. Flatline only looks on."""
    return bool(linecache.getlines(file)) and (package_of(file) == TRL or not in_library(file))
