"""From a wrong value back to the statements that may have made it so.

A value is followed by its content, through calls, dicts and attributes, to the statement that
first made it. What that statement read is looked at in turn: right values are left alone, unknown
ones are followed further. A statement that reads only right values and makes a wrong one is the
likeliest; then come those that made its right ones, perhaps for another place; those between it and
the wrong value; and the conditions that let them run. The user's own statements among them come
before those of a library, which others run too.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from flatline.live.where.package import in_library
from flatline.live.where.specified import Right
from flatline.live.where.statements import Path
from flatline.live.where.tracing import RETURNED, Event
from flatline.live.where.values import Value

OWN = 5
"""How many groups the user's own statements are moved up."""
FAR = 40
"""Statements that are looked at on the way back."""
GAPS = ((-1, 0), (-1, 1), (0, 1), (1, 1))
"""Where statements are put that follow a right value, of which one should have made another: two
before the statement that made it, two after that and its sources."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    event: Event
    group: int
    """0 reads right values alone, 1 made one of them, 2 lies between (the first to use what 0 makes
    comes first), 3 and more are conditions."""
    depth: float


class Trail:
    """Everything that was seen, by content and by place."""

    def __init__(self, events: Sequence[Event], right: Right) -> None:
        self._events, self._right = events, right
        self._frames: dict[int, list[Event]] = defaultdict(list)
        self._made: dict[str, Event] = {}
        self._last: dict[str, Event] = {}
        self._proven: set[str] = set()
        """Functions that returned a right value at least once."""
        for event in events:
            self._frames[event.frame].append(event)
        for event in sorted(events, key=lambda event: event.ended):
            for value in event.writes.values():
                for part in _all_parts(value):
                    self._made.setdefault(part.key, event)
                    self._last[part.key] = event

    def maker(self, value: Value) -> Event | None:
        """Who first wrote this content."""
        return self._made.get(value.key)

    def cutter(self, values: Sequence[Value]) -> list[Event]:
        """Of the statements that wrote most of several values the first, in a list of one."""
        wanted = {one.key for one in values}
        wrote: dict[tuple[str, int], set[str]] = defaultdict(set)
        first: dict[tuple[str, int], Event] = {}
        for event in sorted(self._events, key=lambda event: event.ended):
            parts = [part.key for value in event.writes.values() for part in _all_parts(value)]
            if wanted.intersection(parts):
                place = (event.statement.file, event.statement.line)
                first.setdefault(place, event)
                wrote[place] |= wanted.intersection(parts)
        most = max(wrote, key=lambda place: len(wrote[place]), default=None)
        return [] if most is None else [first[most]]

    def behind(self, event: Event) -> list[Event]:
        """A statement, those of its own call that made what it read, then all others that ran
        before it, the last first."""
        made = set(self.assigned(event))
        ran = [one for one in reversed(self._frames[event.frame]) if one.number < event.number]
        near = sorted(made, key=lambda one: -one.number)
        return _once([event, *near, *(one for one in ran if _may_change(one))])

    def dropped(self, number: int) -> list[Event]:
        """Who last took a number out of a list of numbers of rows, and what is behind that."""
        for event in reversed(self._events):
            for path, left in event.writes.items():
                had, kept = event.reads.get(path), set(_numbers(left))
                if had is None or not _is_list(left) or not _is_numbers_of_rows(had, number):
                    continue
                if number not in kept and kept < set(_numbers(had)):
                    return self.behind(event)
        return []

    def left(self, function: str) -> list[Event]:
        """The condition that was asked last before a function ended its loop, and what is behind
        it."""
        ran = [one for one in self._events if one.function.rpartition(".")[2] == function]
        ends = (one for one in reversed(ran) if one.statement.kind == "While")
        return next((self.behind(one) for one in ends), [])

    def writing(self, value: Value) -> list[Event]:
        """Statements that wrote to what holds a value in the end, or would have had a condition let
        them; the last first."""
        made = self.maker(value)
        if made is None:
            return []
        names = {path[0] for path, one in made.writes.items() if one.key == value.key}
        ran = [one for one in self._frames[made.frame] if _writes_to(one, names)]
        return _once([*reversed(ran), made])

    def ranked(self, wrong: Sequence[Value], given_by: str = "") -> list[Event]:
        """Statements behind the wrong values, the likeliest first, each once. Where some are no
        specified value at all, those that are another one are left alone. `given_by` is the method
        that they are known to come from: others may hold the same content by chance."""
        wrong = [one for one in wrong if not self._right.name(one)] or wrong
        self._proven = set(self._returned_right({one.key for one in wrong}))
        suspects: list[_Suspect] = []
        waiting: deque[tuple[Event, int, Event | None]] = deque()
        for value in wrong:
            made = self._returned_by(given_by, value) or self._last.get(value.key)
            if made is not None:
                made = self._origin(made, value)
                waiting.append((made, 0, None))
                if self._right.name(value):
                    suspects += self._missing(self._asker(made), value)
        seen: set[Event] = set()
        while waiting and len(seen) < FAR:
            event, depth, user = waiting.popleft()
            if event in seen:
                continue
            seen.add(event)
            before = list(dict.fromkeys(self._before(event)))
            waiting += [(one, depth + 1, event) for one in before]
            judged = list(self._judged(event, depth, ends=not before))
            suspects += judged
            if user is not None and judged[0].group == 0:
                suspects.append(_Suspect(user, 2, -0.5))
            suspects += [_Suspect(one, 4, depth) for one in self._guards(event)]
        suspects.sort(key=lambda one: (one.group - OWN * is_own(one.event), one.depth))
        return _once(one.event for one in suspects)

    def _returned_by(self, method: str, value: Value) -> Event | None:
        """The statement with which a method gave the value back, last."""
        told = (one for one in reversed(self._events) if one.function.endswith(f".{method}"))
        return next((one for one in told if _holds(one.writes.get(RETURNED), value)), None)

    def _returned_right(self, wrong: Collection[str]) -> Iterator[str]:
        for event in self._events:
            told = event.writes.get(RETURNED)
            if told is not None and told.key not in wrong and self._is_data(told):
                yield from [event.function] if self._right.name(told) else []

    def _judged(self, event: Event, depth: int, *, ends: bool) -> Iterator[_Suspect]:
        """The statement, and the call that it was made for. A function that was right elsewhere is
        less likely than what it was told this time; a lambda hands on what others told it."""
        group = 0 if ends and self._reads_right(event) and event.statement.kind != "For" else 2
        asked = event.parent is not None and not event.parent.function.endswith("<lambda>")
        helper = asked and event.function in self._proven
        yield _Suspect(event, group + 5 if helper else group, depth)
        yield from (_Suspect(one, group, depth) for one in self._counted(event))
        for above, caller in enumerate(_callers(event)):
            yield _Suspect(caller, 0 if helper and not above else 3, depth + above)
        if group == 0:
            yield from (_Suspect(one, 1, depth) for one in self._sources(event))
            for path, value in event.reads.items():
                yield from self._skipped(event, path, value)
            yield from (_Suspect(one, 2, -1) for one in self.chosen_by(event))

    def _asker(self, event: Event) -> Event:
        """Where a helper that was right elsewhere gave the value back, who asked for it."""
        while event.parent is not None and event.function in self._proven:
            event = event.parent
        return event

    def chosen_by(self, event: Event) -> list[Event]:
        """The condition that chose this statement over another, in a list of one; or none."""
        return [one for one in self._guards(event) if one.statement.kind == "If"][:1]

    def _counted(self, event: Event) -> Iterator[Event]:
        """Who wrote the plain numbers that it read: sizes, limits, divisors."""
        for path, value in event.reads.items():
            if type(value.content) in (int, float) and not self._right.name(value):
                yield from self._assigned(event, path)

    def _sources(self, event: Event) -> Iterator[Event]:
        """Who wrote what it read. Where two names hold one and the same specified value, one of
        them should hold another: then also who wrote what those read."""
        made = self.assigned(event)
        yield from made
        yield from (two for one in made for two in self._named_again(one))
        yield from (two for one in made for two in self._counted(one))
        names = [self._right.name(one) for one in event.reads.values() if self._is_data(one)]
        if len(set(names)) < len(names):
            more = {two for one in made for path in one.reads for two in self._assigned(one, path)}
            yield from sorted(more, key=lambda one: -one.number)

    def _named_again(self, event: Event) -> Iterator[Event]:
        """Who made what a statement only gives another name."""
        told = {one.key for one in event.writes.values()}
        for path, value in event.reads.items():
            again = self._is_data(value) and value.key in told
            for before in self._assigned(event, path) if again else ():
                yield before
                yield from self._named_again(before)

    def assigned(self, event: Event) -> list[Event]:
        """Who wrote, in the same call, what a statement read."""
        return [one for path in event.reads for one in self._assigned(event, path)]

    def _assigned(self, event: Event, path: Path) -> list[Event]:
        """The last statement of the same call that wrote to a path, in a list of one; or none."""
        past = (one for one in reversed(self._frames[event.frame]) if one.number < event.number)
        return [one for one in past if path in one.writes][:1]

    def _skipped(self, event: Event, path: Path, value: Value) -> Iterator[_Suspect]:
        """Conditions between a right value and its use that would have changed it, last first."""
        for made in self._assigned(event, path) if self._right.name(value) else ():
            for one in self._frames[event.frame]:
                between = made.number < one.number < event.number
                around = one.statement.line in event.statement.guards
                if between and not around and path[0] in one.statement.inside:
                    yield _Suspect(one, 1, event.number - one.number)

    def _before(self, event: Event) -> Iterator[Event]:
        """Who made what it read and is not known to be right."""
        for path, value in event.reads.items():
            if not self._is_data(value) or self._right.name(value):
                continue
            made = self._written(event, path, value)
            if made is None and event.parent is not None:
                yield event.parent  # made by code that is not followed, of what this told it
            elif made is not None and made is not event:
                yield made
        for inner in event.calls:
            told = inner.writes.get(RETURNED)
            if told is not None and self._is_data(told) and not self._right.name(told):
                yield self.maker(told) or inner
        for path in event.statement.reads:
            if path not in event.reads:
                yield from self._uncopied(event, path)

    def _uncopied(self, event: Event, path: Path) -> list[Event]:
        """Who set a name of which no copy is kept: something large, or no data."""
        past = (one for one in reversed(self._frames[event.frame]) if one.number < event.number)
        return [one for one in past if path in one.statement.writes][:1]

    def _written(self, event: Event, path: Path, value: Value) -> Event | None:
        """Who made what the statement read under this path."""
        for one in self._assigned(event, path):
            if _holds(one.writes[path], value):
                return self._origin(one, value)
        made = self.maker(value)
        return made if made is None or made.number < event.number else None

    def _origin(self, event: Event, value: Value) -> Event:
        """Back from a statement that only handed the value on to the one that made it."""
        seen: set[Event] = set()
        while event not in seen:
            seen.add(event)
            event = next(self._handed_by(event, value, seen), event)
        return event

    def _handed_by(self, event: Event, value: Value, seen: Collection[Event]) -> Iterator[Event]:
        """Who gave it the value: a function that it called, or who wrote what it read; who wrote to
        the same before, where this only put another entry beside it."""
        for path, whole in event.writes.items():
            if whole.key != value.key and _holds(whole, value):
                before = self._assigned(event, path)
                yield from (one for one in before if _holds(one.writes[path], value))
        for inner in event.calls:
            if inner not in seen and _holds(inner.writes.get(RETURNED), value):
                yield inner
        for path, read in event.reads.items():
            if _holds(read, value):
                yield from self._assigned(event, path) or self._kept(event, path, value)
                yield from [event.parent] if event.parent and event.parent not in seen else []

    def _kept(self, event: Event, path: Path, value: Value) -> list[Event]:
        """Who last put it where it was read, in another call: attributes outlive one."""
        past = (one for one in reversed(self._events[: event.number]) if path in one.writes)
        return [one for one in past if _holds(one.writes[path], value)][:1] if path[1:] else []

    def _reads_right(self, event: Event) -> bool:
        return any(self._is_data(one) and self._right.name(one) for one in event.reads.values())

    def _guards(self, event: Event) -> Iterator[Event]:
        lines = set(event.statement.guards)
        for one in reversed(self._frames[event.frame]):
            if one.number < event.number and one.statement.line in lines:
                lines.discard(one.statement.line)
                yield one

    def _missing(self, made: Event, value: Value) -> list[_Suspect]:
        """A right value where another should be: something was left out after it."""
        names = {path[0] for path, one in made.writes.items() if one.key == value.key}
        after = [one for one in self._frames[made.frame] if one.number > made.number]
        near = sorted(
            (one for one in after if _may_write(one, names)),
            key=lambda one: not _writes_to(one, names),
        )
        places = zip(near, GAPS, strict=False)
        return [_Suspect(made, 0, 0), *(_Suspect(one, *place) for one, place in places)]

    def _is_data(self, value: Value) -> bool:
        return isinstance(value.content, Tensor | tuple | dict)


def _may_write(event: Event, names: Collection[str]) -> bool:
    """Whether the statement could have changed one of these names: a condition that skips such a
    change could."""
    statement = event.statement
    if statement.kind == "If":
        return statement.leaves or bool(statement.inside & set(names))
    return statement.kind not in ("FunctionDef", "AsyncFunctionDef", "ClassDef")


def _writes_to(event: Event, names: Collection[str]) -> bool:
    """Whether it wrote one of these names, or decided whether that is done."""
    statement = event.statement
    if statement.kind == "If":
        return bool(statement.inside & set(names))
    changed = {path[0] for path in event.writes} | statement.inside
    return statement.kind not in ("For", "While", "With") and bool(changed & set(names))


def _is_list(value: Value) -> bool:
    """Whether it is a list of whole numbers: their text is its key."""
    return value.key.startswith("[") and "." not in value.key


def _numbers(value: Value) -> list[float]:
    return value.content.tolist() if _is_list(value) else []


def _is_numbers_of_rows(value: Value, number: int) -> bool:
    """Whether a list has a number, and goes up as numbers of rows do."""
    found = _numbers(value)
    return number in found and all(a < b for a, b in pairwise(found))


def _may_change(event: Event) -> bool:
    """Whether anything would be another without it: a condition around nothing only complains."""
    return event.statement.kind != "If" or bool(event.statement.inside)


def is_own(event: Event) -> bool:
    """Whether it is the user's, and no library's."""
    return not in_library(event.statement.file)


def _callers(event: Event) -> Iterator[Event]:
    """From the inside out; a decorator's wrapper only hands on."""
    above = event.parent
    while above is not None:
        if not above.function.endswith("wrapper"):
            yield above
        above = above.parent


def _holds(value: Value | None, part: Value) -> bool:
    return value is not None and any(one.key == part.key for one in _all_parts(value))


def _all_parts(value: Value) -> Iterator[Value]:
    yield value
    inner = value.content.values() if isinstance(value.content, dict) else value.content
    if isinstance(value.content, dict | tuple):
        for part in inner:
            yield from _all_parts(part)


def _once(events: Iterable[Event]) -> list[Event]:
    seen: dict[tuple[str, int], Event] = {}
    for event in events:
        seen.setdefault((event.statement.file, event.statement.line), event)
    return list(seen.values())
