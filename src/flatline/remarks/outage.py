"""A reward that is gone for some steps and comes back at once: what paid it was out, and the policy
went on. What was measured meanwhile says nothing of it, so that what else is said of a log leaves
these steps out."""

import math
import re
from typing import NamedTuple

import numpy as np

from flatline.remarks.columns import HELD_OUT, SPREAD, Column, listed, yours
from flatline.remarks.shape import typical
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

ROWS, FEWEST = 10, 3
"""Rows beside it that are compared, and rows that it lasts, at least."""
NOTHING, BACK = 0.1, 0.5
"""Share of the level before that no row of it has, and that the rows beside it have."""
SURE = 4.0
"""How many times what the rows beside it are off they are above it, at least."""
LONGEST = 0.5
"""Share of the rows that it lasts at most."""
MOVED, STAYS, FAR = 0.2, 0.1, 3.0
"""Relative change of a column that is told, and of one that is said to stay; and how many times
what its rows are off otherwise the first one is, at least."""
TOLD, LISTED = 3, 4
"""Columns that are told with it, and outages beside the longest."""
_LENGTH = re.compile(
    r"(.*/)?(seq(uence)?|response|completion|output|gen(eration)?)s?_?len(gth)?s?([/_](mean|avg))?"
)


class Outage(NamedTuple):
    """The rows of it, by their places in the outcome."""

    start: int
    back: int
    """The first of it, and the first after it."""
    before: np.ndarray
    after: np.ndarray
    """The rows beside it that are of no other one."""

    def __len__(self) -> int:
        return self.back - self.start

    @property
    def inside(self) -> slice:
        return slice(self.start, self.back)


def outages_of(outcome: Column) -> list[Outage]:
    """Of what counts as success: from one row to the next it is gone, and so it comes back."""
    values = outcome.shape.values
    runs = [one for one in _gone(values) if one[1] - one[0] <= LONGEST * len(values)]
    usual = np.ones(len(values), bool)
    for start, back in runs:
        usual[start:back] = False
    places = np.flatnonzero(usual)
    found = []
    for start, back in runs:
        before, after = places[places < start][-ROWS:], places[places >= back][:ROWS]
        one = Outage(start, back, before, after)
        if min(len(before), len(after)) == ROWS and _surely(values, one):
            found.append(one)
    return found


def _gone(values: np.ndarray) -> list[tuple[int, int]]:
    """Where rows begin and end that have next to nothing of the level before them."""
    found: list[tuple[int, int]] = []
    usual, at = values[:ROWS].tolist(), ROWS
    low = _below_all(values)
    while at < len(values):
        if not found or at >= found[-1][1] + ROWS:  # the rows before it are those that are usual
            begin, at = at, int(low[np.searchsorted(low, at)])
            usual += values[max(begin, at - ROWS) : at].tolist()
        most = NOTHING * typical(np.array(usual[-ROWS:]))
        back = at
        while back < len(values) and values[back] <= most:
            back += 1
        if back - at >= FEWEST:
            found.append((at, back))
        else:
            back = max(back, at + 1)
            usual += values[at:back].tolist()
        at = back
    return found


def _below_all(values: np.ndarray) -> np.ndarray:
    """Rows that have next to nothing of the largest before them, as all have that have next to
    nothing of the level; and the end."""
    if len(values) <= ROWS:
        return np.array([len(values)])
    largest = np.lib.stride_tricks.sliding_window_view(values[:-1], ROWS).max(axis=1)
    low = np.flatnonzero(values[ROWS:] <= NOTHING * largest) + ROWS
    return np.append(low, len(values))


def _surely(values: np.ndarray, out: Outage) -> bool:
    before, after = values[out.before], values[out.after]
    level, most = typical(before), float(values[out.inside].max())
    off = math.sqrt((before.var() + after.var()) / 2)
    beside = min(float(values[out.start - 1]), float(values[out.back]), typical(after))
    return beside >= BACK * level > 0 and min(level, typical(after)) - most > SURE * off


def without(trace: Trace, outages: list[Outage], outcome: Column) -> Trace:
    """The log without the rows of all of them."""
    step = trace.steps["step"]
    kept = np.ones(len(step), bool)
    for first, last in (_steps(one, outcome) for one in outages):
        kept &= (step < first) | (step > last)
    return trace.of_rows(kept)


def told_of(outages: list[Outage], outcome: Column, columns: list[Column]) -> str:
    """The longest with both of its edges, when the others are, what goes with it, and what does
    not."""
    out, *others = sorted(outages, key=lambda one: -len(one))
    values, step = outcome.shape.values, outcome.shape.step
    before, inside, after = _levels(values, out)
    edges = [
        f"{outcome.bare(float(values[at - 1]))} to {outcome.bare(float(values[at]))} at step "
        f"{step[at]:g}"
        for at in (out.start, out.back)
    ]
    whole = [one for one in columns if one is not outcome and len(one.shape) == len(values)]
    moved = sorted(
        (one for one in whole if _moves(one, out)),
        key=lambda one: (not one.name.startswith("seconds"), -_times(one, out)),
    )
    goes = [_goes(one, out) for one in moved[:TOLD]]
    length = next((one for one in whole if _is_length(one)), None)
    stays = length is not None and _stays(length, out)
    return (
        f"In {spans([out], outcome)} {yours(outcome)} is gone: about {outcome.bare(inside)}, "
        f"{outcome.bare(before)} before and {outcome.bare(after)} after, from one row to the next "
        f"both times ({edges[0]}, {edges[1]})"
        + (f"; it is gone in {spans(others, outcome)}, too" if others else "")
        + (f"; meanwhile {listed(goes)}" if goes else "")
        + (f"; {length.subject} does not change" if length is not None and stays else "")
        + "."
    )


def spans(outages: list[Outage], outcome: Column) -> str:
    """The steps of some outages, in their order."""
    ordered = sorted(outages, key=lambda one: one.start)
    told = ["{:g} to {:g}".format(*_steps(one, outcome)) for one in ordered[:LISTED]]
    more = len(ordered) - LISTED
    return "steps " + listed([*told, *([f"{more} stretches more"] if more > 0 else [])])


def _steps(out: Outage, outcome: Column) -> tuple[float, float]:
    first, last = outcome.shape.step[[out.start, out.back - 1]]
    return float(first), float(last)


def _is_length(one: Column) -> bool:
    return one.name == "completion_length" or _LENGTH.fullmatch(plain(one.name)) is not None


def _times(one: Column, out: Outage) -> float:
    """How many times as large or as small a column is meanwhile, as a logarithm."""
    before, inside, _ = _levels(one.shape.values, out)
    return abs(math.log(inside / before))


def _levels(values: np.ndarray, out: Outage) -> tuple[float, float, float]:
    before, inside, after = (typical(values[at]) for at in (out.before, out.inside, out.after))
    return before, inside, after


def _moves(one: Column, out: Outage) -> bool:
    """Whether a column is at another level meanwhile, beside what it was before and is after."""
    values = one.shape.values
    if values.min() < 0 or one.part or one.words is SPREAD or one.words.rank == HELD_OUT:
        return False
    before, inside, after = _levels(values, out)
    beside = values[[*out.before, *out.after]]
    off = float(np.diff(beside).std()) / 2**0.5
    apart = [inside - before, inside - after]
    least = max(MOVED * min(before, inside), FAR * off)
    same_way = apart[0] * apart[1] > 0 and min(before, inside) > 0
    return same_way and min(map(abs, apart)) > least


def _stays(one: Column, out: Outage) -> bool:
    before, inside, after = _levels(one.shape.values, out)
    return min(before, after) * (1 - STAYS) <= inside <= max(before, after) * (1 + STAYS)


def _goes(one: Column, out: Outage) -> str:
    before, inside, after = _levels(one.shape.values, out)
    word = "rises" if inside > before else "falls"
    ends = f"from {one.bare(before)} to {one.number(inside)} ({one.bare(after)} after)"
    return f"{one.subject} {word} {ends}"
