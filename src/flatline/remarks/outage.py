"""A reward that is gone for some steps and comes back at once: what paid it was out, and the policy
went on. What was measured meanwhile says nothing of it."""

import math
from typing import NamedTuple

import numpy as np

from flatline.remarks.columns import HELD_OUT, SPREAD, Column, listed, yours
from flatline.remarks.shape import typical

ROWS, FEWEST = 10, 3
"""Rows beside it that are compared, and rows that it lasts, at least."""
NOTHING, BACK = 0.1, 0.5
"""Share of the level before that no row of it has, and that the rows after it have again."""
LONGEST = 0.5
"""Share of the rows that it lasts at most."""
MOVED, STAYS, FAR = 0.2, 0.1, 3.0
"""Relative change of a column that is told, and of one that is said to stay; and how many times
what its rows are off otherwise the first one is, at least."""
TOLD = 3
"""Columns that are told with it."""


class Outage(NamedTuple):
    """The rows of it, by their places in the outcome."""

    start: int
    back: int
    """The first of it, and the first after it."""


def outage_of(outcome: Column) -> Outage | None:
    """Of what counts as success: from one row to the next it is gone, and so it comes back."""
    values, jumps = outcome.shape.values, outcome.shape.course.jumps
    for start, (before, inside) in jumps.items():
        ends = (at for at in jumps if start + FEWEST <= at <= start + LONGEST * len(values))
        back = next(ends, None)
        if back is None or not before > inside or start < ROWS or len(values) - back < ROWS:
            continue
        gone = values[start:back].max() <= NOTHING * typical(values[start - ROWS : start])
        if gone and typical(values[back : back + ROWS]) >= BACK * before > 0:
            return Outage(start, back)
    return None


def told_of(out: Outage, outcome: Column, columns: list[Column]) -> str:
    """The stretch with both of its edges, what goes with it, and what does not."""
    values, step = outcome.shape.values, outcome.shape.step
    before, inside, after = _levels(values, out)
    first, last = step[out.start], step[out.back - 1]
    edges = [
        f"{outcome.bare(float(values[at - 1]))} to {outcome.bare(float(values[at]))} at step "
        f"{step[at]:g}"
        for at in out
    ]
    whole = [one for one in columns if one is not outcome and len(one.shape) == len(values)]
    moved = sorted(
        (one for one in whole if _moves(one, out)),
        key=lambda one: (not one.name.startswith("seconds"), -_times(one, out)),
    )
    goes = [_goes(one, out) for one in moved[:TOLD]]
    length = next((one for one in whole if one.name == "completion_length"), None)
    stays = length is not None and _stays(length, out)
    return (
        f"In steps {first:g} to {last:g} {yours(outcome)} is gone: about {outcome.bare(inside)}, "
        f"{outcome.bare(before)} before and {outcome.bare(after)} after, from one row to the next "
        f"both times ({edges[0]}, {edges[1]})"
        + (f"; meanwhile {listed(goes)}" if goes else "")
        + (f"; {length.subject} does not change" if length is not None and stays else "")
        + "."
    )


def outside(out: Outage | None, outcome: Column | None, score: Column) -> np.ndarray:
    """Which evaluations were not taken in it."""
    step = score.shape.step
    if out is None or outcome is None:
        return np.ones(len(step), bool)
    first, last = outcome.shape.step[[out.start, out.back - 1]]
    return np.asarray((step < first) | (step > last))


def _times(one: Column, out: Outage) -> float:
    """How many times as large or as small a column is meanwhile, as a logarithm."""
    before, inside, _ = _levels(one.shape.values, out)
    return abs(math.log(inside / before))


def _levels(values: np.ndarray, out: Outage) -> tuple[float, float, float]:
    parts = (
        values[out.start - ROWS : out.start],
        values[out.start : out.back],
        values[out.back : out.back + ROWS],
    )
    before, inside, after = (typical(part) for part in parts)
    return before, inside, after


def _moves(one: Column, out: Outage) -> bool:
    """Whether a column is at another level meanwhile, beside what it was before and is after."""
    values = one.shape.values
    if values.min() <= 0 or one.part or one.words is SPREAD or one.words.rank == HELD_OUT:
        return False
    before, inside, after = _levels(values, out)
    beside = np.concatenate([values[out.start - ROWS : out.start], values[out.back :][:ROWS]])
    off = float(np.diff(beside).std()) / 2**0.5
    apart = [inside - before, inside - after]
    least = max(MOVED * min(before, inside), FAR * off)
    return apart[0] * apart[1] > 0 and min(map(abs, apart)) > least


def _stays(one: Column, out: Outage) -> bool:
    before, inside, after = _levels(one.shape.values, out)
    return min(before, after) * (1 - STAYS) <= inside <= max(before, after) * (1 + STAYS)


def _goes(one: Column, out: Outage) -> str:
    before, inside, after = _levels(one.shape.values, out)
    word = "rises" if inside > before else "falls"
    ends = f"from {one.bare(before)} to {one.number(inside)} ({one.bare(after)} after)"
    return f"{one.subject} {word} {ends}"
