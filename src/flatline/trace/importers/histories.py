"""Metrics that a file keeps one by one, each with its history, as MLflow's client hands them out.

    {"run_id": "...", "params": {...}, "metrics": {
        "reward_mean": [{"step": 1, "timestamp": 1759000090184, "value": 0.39}, ...],
        "kl": [[1, 0.0002], [2, 0.0004], ...]}}

What was logged at one time becomes one row. A run that was resumed logged some steps twice, and its
rows keep the order in which they were logged, so that the later ones count.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from flatline.trace.importers.log import Entry, Log, quoted
from flatline.trace.importers.numbers import number, whole

MILLISECONDS = 1e11
"""Timestamps above it count milliseconds since 1970."""


class Point(NamedTuple):
    """A number that was logged."""

    order: float
    """When: by the clock, or by how often its metric had gone back to an earlier step."""
    step: int
    name: str
    value: Any
    time: float | None


def histories_in(data: Any) -> dict[str, list[Any]]:
    """Name -> its history, of an object that has nothing else; empty for any other."""
    known = isinstance(data, dict) and all(
        isinstance(history, list) and all(map(_point, history)) for history in data.values()
    )
    return {name: history for name, history in data.items() if history} if known else {}


def read_histories(path: Path, histories: dict[str, list[Any]], params: Any) -> Log:
    """The rows of an object of histories."""
    log = Log(source="json", path=path, config=params if isinstance(params, dict) else {})
    points = [one for name in histories for one in _points(log, name, histories[name])]
    timed = all(one.time is not None for one in points)
    if not timed:
        points = _in_branches(points)
    row: dict[str, Any] = {}
    for one in sorted(points, key=lambda one: (one.time if timed else one.order, one.step)):
        if row and (row["step"] != one.step or one.name in row):
            log.entries.append(Entry(f"step {row['step']}", row))
            row = {}
        row |= {"step": one.step, one.name: one.value}
        if one.time is not None:
            row["_timestamp"] = one.time
    log.entries += [Entry(f"step {row['step']}", row)] if row else []
    return log


def _point(one: Any) -> bool:
    if isinstance(one, dict):
        return "step" in one and "value" in one
    return isinstance(one, list) and len(one) == 2


def _points(log: Log, name: str, history: list[Any]) -> Iterator[Point]:
    turns, last = 0, -1
    for one in history:
        step, value = (one["step"], one["value"]) if isinstance(one, dict) else one
        at, time = whole(step), number(one.get("timestamp")) if isinstance(one, dict) else None
        if at is None:
            log.bad.append(f"{name}: not a step: {quoted(step)}")
            continue
        turns, last = turns + (at <= last), at
        time = time / 1000 if time is not None and time > MILLISECONDS else time
        yield Point(turns, at, name, value, time)


def _in_branches(points: list[Point]) -> list[Point]:
    """The same where there is no clock: what a metric logged beyond the step at which another one
    went back was logged after that, although it has no step twice itself."""
    by_name: dict[str, list[Point]] = {}
    for one in points:
        by_name.setdefault(one.name, []).append(one)
    longest = max(by_name.values(), key=len)
    ends = [one.step for one, then in pairwise(longest) if then.order > one.order]
    return [
        one._replace(order=max(one.order, sum(one.step > end for end in ends))) for one in points
    ]
