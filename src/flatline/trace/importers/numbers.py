"""Values of a log as numbers: what counts as one, and nested rows laid flat."""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

MAX_STEP = 2**31 - 1
_WRAPPERS = ("data", "metrics", "logs", "log")
"""Keys under which a logger puts the metrics of a row; they are no part of the metric's name."""
_DEPTH = 6
_OF_STEPS = re.compile(r"(?<=\d)/\d+$")
_PLAIN = frozenset({float, int, bool, str, type(None)})


def number(value: Any) -> float | None:
    """A number, or text that is one; None for anything else. NaN and infinity are numbers."""
    if type(value) is float:  # nearly all of a log
        return value
    if isinstance(value, str):
        value = value.strip()
        if not value or "_" in value:  # Python would read "1_000" as a number
            return None
    elif not isinstance(value, bool | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def whole(value: Any) -> int | None:
    """A step: a whole number that is not negative and fits the trace. "3/250" is step 3 of 250."""
    if type(value) is int and 0 <= value <= MAX_STEP:  # nearly all of a log
        return value
    found = number(_OF_STEPS.sub("", value) if isinstance(value, str) else value)
    if found is None or isinstance(value, bool) or not math.isfinite(found):
        return None
    return int(found) if found == int(found) and 0 <= found <= MAX_STEP else None


def numbers_in(values: Mapping[str, Any], *, leave_out: Collection[str]) -> dict[str, float]:
    """Every number of a row but those named."""
    found = {name: number(value) for name, value in values.items() if name not in leave_out}
    return {name: value for name, value in found.items() if value is not None}


def flat(values: dict[str, Any], prefix: str = "", depth: int = _DEPTH) -> dict[str, Any]:
    """Nested objects as `outer/inner`; what lies deeper than any logger nests is left out."""
    if not prefix and _PLAIN.issuperset(map(type, values.values())):
        return values
    found: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(value, dict):
            found[f"{prefix}{key}"] = value
        elif depth and "_type" not in value:  # W&B's tables and images: sizes, not metrics
            found.update(flat(value, f"{prefix}{key}/", depth - 1))
    return found


def unwrapped(values: dict[str, Any]) -> dict[str, Any]:
    """A row whose logger keeps the metrics in an object of their own, as verl's does."""
    if values.keys().isdisjoint(_WRAPPERS):
        return values  # nearly every row of a log
    found = dict(values)
    for key in _WRAPPERS:
        inner = found.get(key)
        if isinstance(inner, dict):
            del found[key]
            found = inner | found
    return found
