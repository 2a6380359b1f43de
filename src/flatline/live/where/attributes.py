"""Where an attribute was set before anybody followed it: found in the text of the classes."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from flatline.live.where.package import in_library
from flatline.live.where.statements import Statement, statements
from flatline.live.where.tracing import Event, follows

LOOKED_AT = 10
"""Statements, the likeliest, whose attributes are looked up."""


def with_what_was_set(
    owner: Any, ranked: Sequence[Event], differs: Callable[[str], bool]
) -> list[tuple[Statement, str]]:
    """The likeliest statements with their functions; behind each those that set, before anybody
    followed, what it read of `owner` in the user's own classes. They made no wrong value. Who set
    one that differs from what was asked for did, in a library too, and comes first."""
    methods = [one for kind in type(owner).__mro__ for one in _methods(kind)]
    ours = {_named(code) for code in methods}
    first, rest = list[tuple[Statement, str]](), list[tuple[Statement, str]]()
    known = set[str]()
    for at, event in enumerate(ranked):
        rest.append((event.statement, event.function))
        names = _attributes(event) if at < LOOKED_AT and event.function in ours else ()
        for name in dict.fromkeys(one for one in names if one not in known):
            known.add(name)
            every = next(
                (found for code in methods if (found := list(_assignments(code, name)))), []
            )
            if every and differs(name):
                first += _set(name, every, methods)
            elif every and not in_library(every[0][0].file):
                rest += _set(name, every, methods)
    return [*first, *rest]


def _set(
    name: str, every: Sequence[tuple[Statement, str]], methods: Sequence[CodeType]
) -> Iterator[tuple[Statement, str]]:
    """The statement that set an attribute last, and what is behind it. What only adds to the value
    comes after all that may have set it, and after the conditions that chose among those."""
    anew = [one for one in every if ("self", f".{name}") not in one[0].reads]
    if len(anew) == len(every) or not anew:
        yield every[0]
        yield from _before(every[0], methods)
        return
    known = statements(every[0][0].file)
    heads = dict.fromkeys(line for one, _ in anew for line in one.guards)
    yield from anew
    yield from ((known[line], anew[0][1]) for line in heads if line in known)
    yield from (one for one in every if one not in anew)


def naming(owner: Any, word: str) -> Iterator[tuple[Statement, str]]:
    """Statements of its classes that have a word in them, the conditions around each, and what
    made those; with their functions."""
    methods = [one for kind in type(owner).__mro__ for one in _methods(kind)]
    for code in methods:
        known = statements(code.co_filename)
        lines = {line for _, _, line in code.co_lines() if line is not None}
        for one in dict.fromkeys(known[line] for line in sorted(lines) if line in known):
            if word in one.source:
                around = [known[line] for line in one.guards if line in lines]
                yield from ((each, _named(code)) for each in (one, *around))
                for each in (one for one in around if one.kind == "If"):
                    yield from _before((each, _named(code)), methods)


def named_by_callers(thing: Any) -> Iterator[tuple[Statement, str]]:
    """Statements that gave a thing its name in a function that is still running: it was made before
    anybody followed it. The outermost first; what only passes it on has no such statement."""
    if thing is None:
        return
    frame, found = sys._getframe(), list[tuple[Statement, str]]()
    while frame is not None:
        code, local = frame.f_code, frame.f_locals
        names = [name for name, one in local.items() if one is thing] if _is_own(code) else []
        known = statements(code.co_filename) if names else {}
        inside = {known[at] for _, _, at in code.co_lines() if at in known}
        wrote = [one for one in inside if any((name,) in one.writes for name in names)]
        found += [(one, _named(code)) for one in sorted(wrote, key=lambda one: one.line)]
        frame = frame.f_back  # type: ignore[assignment]
    yield from reversed(found)


def _is_own(code: CodeType) -> bool:
    return follows(code.co_filename) and not in_library(code.co_filename)


def _before(
    found: tuple[Statement, str], methods: Sequence[CodeType]
) -> Iterator[tuple[Statement, str]]:
    """What made the names that it reads, in the same method."""
    code = next(one for one in methods if _named(one) == found[1])
    names = {path[0] for path in found[0].reads} - {"self"}
    known = {one.line: one for one in statements(code.co_filename).values()}
    for line in sorted(known, reverse=True):
        inside = code.co_firstlineno < line < found[0].line
        writes = known[line].writes
        if inside and names & {path[0] for path in writes}:
            names -= {path[0] for path in writes if not path[1:]}  # an entry is not all of a dict
            yield known[line], found[1]


def _methods(kind: type) -> list[CodeType]:
    """Of the classes that are followed, `__init__` first."""
    plain = [inspect.unwrap(one) for one in vars(kind).values() if callable(one)]
    codes = [one.__code__ for one in plain if inspect.isfunction(one)]
    followed = [one for one in codes if follows(one.co_filename)]
    return sorted(followed, key=lambda one: one.co_name != "__init__")


def _attributes(event: Event) -> Iterator[str]:
    for path in event.statement.reads:
        if path[0] == "self" and len(path) > 1:
            yield path[1].removeprefix(".")


def _assignments(code: CodeType, name: str) -> Iterator[tuple[Statement, str]]:
    """The last one of the method first."""
    end = max((line for _, _, line in code.co_lines() if line is not None), default=0)
    known = statements(code.co_filename)
    for line in range(end, code.co_firstlineno, -1):
        one = known.get(line)
        if one is not None and ("self", f".{name}") in one.writes:
            yield one, _named(code)


def _named(code: CodeType) -> str:
    return code.co_qualname.replace(".<locals>", "")
