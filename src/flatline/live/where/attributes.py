"""Where an attribute was set before anybody followed it: found in the text of the classes."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from flatline.live.where.statements import Statement, statements
from flatline.live.where.tracing import Event, in_library

LOOKED_AT = 10
"""Statements, the likeliest, whose attributes are looked up."""


def set_elsewhere(
    owner: Any, ranked: Sequence[Event], differs: Callable[[str], bool]
) -> Iterator[tuple[Statement, str]]:
    """Statements that set what the likeliest statements read of `owner`, and their functions: those
    of the user's own classes, and of a library's where the value differs from what was asked."""
    for name in dict.fromkeys(_attributes(ranked[:LOOKED_AT])):
        for kind in type(owner).__mro__:
            found = list(_assignments(kind, name))
            if found and (not in_library(found[0][0].file) or differs(name)):
                yield from found[:1]
            if found:
                break


def _attributes(ranked: Sequence[Event]) -> Iterator[str]:
    for event in ranked:
        for path in event.statement.reads:
            if path[0] == "self" and len(path) > 1:
                yield path[1].removeprefix(".")


def _assignments(kind: type, name: str) -> Iterator[tuple[Statement, str]]:
    """In every method of the class; the last one of `__init__` first."""
    methods = [one for one in vars(kind).values() if inspect.isfunction(inspect.unwrap(one))]
    for method in sorted(methods, key=lambda one: one.__name__ != "__init__"):
        code = inspect.unwrap(method).__code__
        body = {one for one in statements(code.co_filename).values() if _inside(one, code)}
        for one in sorted(body, key=lambda one: -one.line):
            if ("self", f".{name}") in one.writes:
                yield one, code.co_qualname.replace(".<locals>", "")


def _inside(one: Statement, code: CodeType) -> bool:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return code.co_firstlineno <= one.line <= max(lines, default=0)
