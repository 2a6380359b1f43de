"""A reward that is on another scale from one step on: it and its spread are multiplied by one
number, and the policy does not change there.

Nothing that a policy does multiplies both: where more answers are right, their spread goes another
way than their mean.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.column_movement import column
from flatline.hypotheses.trend import Trend, rescaled_at, trend_of
from flatline.remarks.columns import POLICY, SPREAD, Column, listed, short
from flatline.remarks.remark import Event
from flatline.remarks.shape import typical
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

ROWS = 10
"""Rows before and after a step that are compared."""
FACTOR = 1.5
"""Times that a scale changes, at least."""
ALIKE, ERRORS = 0.1, 3.0
"""How far the two factors may be apart, as a share of the change, and in standard errors."""
AS_BEFORE = 1.25
"""Factor below which what a policy does is as before."""
_OF_POLICY = re.compile(r"(.*/)?(kl|entropy|(response|completion)_len(gth)?)(_mean)?")
"""What shows what a policy does, by our name or the log's. What an update does is no part of it:
that goes with the scale."""


class Rescaled(NamedTuple):
    """A change of the scale."""

    step: float
    factor: float
    reward: tuple[float, float]
    spread: tuple[float, float]
    """Before and after."""
    unmoved: list[Column]
    """What shows that the policy does the same."""


def rescaled(trace: Trace, columns: list[Column]) -> Rescaled | None:
    """Where the scale of the reward changes; None where it does not, or where nothing shows that
    the policy is the same."""
    reward = next((one for one in columns if one.name == "reward"), None)
    spreads = [one for one in columns if one.words is SPREAD or one.name == "reward_std_within"]
    rows = len(trace.steps["step"])
    if reward is None or len(reward.shape) != rows or rows < 2 * ROWS:
        return None
    for spread in (one for one in spreads if len(one.shape) == rows):
        at = _jump(spread.values)
        both = _sides(reward.values, at), _sides(spread.values, at)
        if not _same_factor(*both):
            continue
        whole = [one for one in columns if _shows_policy(one) and len(one.shape) == rows]
        moved = [_times(*_sides(one.values, at)) for one in whole]
        if not whole or max(abs(math.log(times)) for times in moved) > math.log(AS_BEFORE):
            continue
        (before, after), (wide, narrow) = ([typical(side) for side in each] for each in both)
        factor = math.sqrt(after / before * narrow / wide)
        step = float(trace.steps["step"][at])
        return Rescaled(step, factor, (before, after), (wide, narrow), whole)
    return None


def _shows_policy(one: Column) -> bool:
    return one.name in POLICY or _OF_POLICY.fullmatch(plain(one.name)) is not None


def _jump(spread: np.ndarray) -> int:
    """The row before which and from which on the spread differs most."""
    places = range(ROWS, len(spread) - ROWS + 1)
    apart = [abs(math.log(_times(*_sides(spread, at)))) for at in places]
    return places[int(np.argmax(apart))]


def _sides(values: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
    return values[at - ROWS : at], values[at : at + ROWS]


def _times(before: np.ndarray, after: np.ndarray) -> float:
    """How many times as large the later rows are; 1 where that is no question."""
    if before.min() <= 0 or after.min() <= 0:
        return 1.0
    return float(np.exp(np.log(after).mean() - np.log(before).mean()))


def _same_factor(*columns: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether both are multiplied by one number, from one row to the next."""
    factors, errors = [], []
    for before, after in columns:
        if before.min() <= 0 or after.min() <= 0:
            return False
        if max(before.min() / after.max(), after.min() / before.max()) <= 1:
            return False
        factors.append(math.log(_times(before, after)))
        errors.append(float(np.hypot(np.log(before).std(), np.log(after).std())) / ROWS**0.5)
    one, other = factors
    least = min(abs(one), abs(other))
    apart = min(ERRORS * math.hypot(*errors), ALIKE * least)
    return least >= math.log(FACTOR) and abs(one - other) <= apart


def scale_event(trace: Trace, columns: list[Column]) -> Event | None:
    """The same as an event."""
    found = rescaled(trace, columns)
    if found is None:
        return None
    goes = "your reward goes from {} to {}".format(*map(short, found.reward))
    spread = "the spread of the rewards from {} to {}".format(*map(short, found.spread))
    same = listed([one.subject for one in found.unmoved])
    does = "does" if len(found.unmoved) == 1 else "do"
    weighs = 1 / found.factor if found.factor < 1 else found.factor
    more = "more" if found.factor < 1 else "less"
    return Event(
        f"At step {found.step:g} the scale of your reward changes: {goes} and {spread}, both by a "
        f"factor of {found.factor:.2g}, while {same} {does} not jump.",
        certain=True,
        moves_reward=False,
        after=f"Whatever was not rescaled with it, such as a KL penalty, weighs {weighs:.2g} times "
        f"{more} from there on{_later(found)}.",
    )


def _later(found: Rescaled) -> str:
    """Where the policy goes afterwards, which is what the other scale does to it."""
    told = []
    for one in found.unmoved:
        at = int(np.searchsorted(one.shape.step, found.step))
        before, last = one.values[at - ROWS : at], one.values[-ROWS:]
        if abs(math.log(_times(before, last))) > math.log(AS_BEFORE):
            ends = f"from {one.bare(typical(before))} to {one.number(typical(last))}"
            told.append(f"{one.subject} goes {ends}")
    return f"; until the end {listed(told)}" if told else ""


def trend_by_scale(trace: Trace, columns: list[Column]) -> Trend | None:
    """The trend of the reward; where its scale changes, of what follows, with what was before."""
    known = column(trace, "reward")
    found = rescaled(trace, columns) if len(known) else None
    if found is None or rescaled_at(known, trace.steps["step"]) is not None:
        return trend_of(trace)
    last = int(trace.steps["step"].max())
    since = trend_of(trace.between(int(found.step), last))
    if since is None:
        return trend_of(trace)
    text = " ".join(_told(found, trend_of(trace.until(int(found.step) - 1)), since))
    return replace(since, text=text)


def _told(found: Rescaled, before: Trend | None, since: Trend) -> Iterator[str]:
    scales = "{} before, {} since".format(*map(short, found.reward))
    yield f"Since step {found.step:g} the reward is on another scale ({scales})."
    if before is not None:
        yield f"Up to there, {_inside(before.text)}"
    yield f"From there on, {_inside(since.text)}"


def _inside(text: str) -> str:
    return text[0].lower() + text[1:]
