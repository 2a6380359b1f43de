"""The event that a log is about: what its reader is told first where no cause was found.

Somebody changed a setting on the way, or several columns left their level at one step, what counts
as success among them. It is told as what was seen: no cause is proved by what happens together.
"""

import re
import warnings
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.column_movement import column
from flatline.hypotheses.held_out import is_evaluation
from flatline.hypotheses.logs import imported
from flatline.hypotheses.trend import SMALLEST
from flatline.remarks.columns import Column, columns_of, listed, once, sentence, short
from flatline.remarks.event import AFTER, FAR, NEAR, Jump, jumps_of
from flatline.remarks.plan import begins_anew
from flatline.remarks.shape import MOST, typical
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

BESIDE = 2
"""Columns that are told with the outcome."""
BORDERS = 2
"""Times that a setting was changed, at most, to be told as one event."""
MOVED, STAYS = 0.2, 0.05
"""Relative change of a share that is one, and of a quotient that is none."""
HOUR = 3600.0
PAUSE, LONG_PAUSE = 20.0, 600.0
"""Times the usual step, and seconds, that nobody waits for a row of a run that goes on."""
POLICY = ("kl", "entropy", "completion_length")
ROWS = 10
"""Rows before and after an event that show what it left behind."""
_SUCCESS = re.compile(
    r"(^|[._/])(solved?|success|correct|acc|accuracy|pass(ed)?)(_rate)?($|[._/@])"
)
"""What stands for the reward in a log that has none under a name that is known."""


class Event(NamedTuple):
    """What happened, in a sentence."""

    text: str
    certain: bool
    """Whether the outcome certainly moved with it."""
    moves_reward: bool
    """Whether it makes most of what the reward gains, so that its rise shows no learning."""
    after: str = ""
    """What it left behind, in a sentence."""


def main_event(trace: Trace) -> Event | None:
    """Of a log; a run with rollouts is judged by them."""
    if not imported(trace) or len(trace.rollouts) or not len(trace.steps):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        columns = once(columns_of(trace))
        outcome = _outcome(columns)
        if outcome is None:
            return None
        return (
            _was_set(columns, outcome)
            or _passes(trace, columns, outcome)
            or _began_again(trace, columns, outcome)
        )


def _outcome(columns: list[Column]) -> Column | None:
    reward = next((one for one in columns if one.name == "reward"), None)
    named = [
        one
        for one in columns
        if _SUCCESS.search(plain(one.name)) and not is_evaluation(one.name) and _is_share(one)
    ]
    return reward or next(iter(named), None)


def _is_share(one: Column) -> bool:
    values = one.shape.values
    return not one.shape.constant and bool(values.min() >= 0 and values.max() <= 1)


def _subject(one: Column) -> str:
    return one.subject.replace("the ", "your ", 1) if one.ours else one.subject


def _passes(trace: Trace, columns: list[Column], outcome: Column) -> Event | None:
    """Several columns leave their level at a step, the outcome among them, and it comes back."""
    jumps = jumps_of(trace, columns)
    mine = next((one for one in jumps if one.column is outcome or _same(one, outcome)), None)
    if mine is None or mine.back is None or mine.far <= FAR or mine.back - mine.at < AFTER:
        return None
    inside = _inside(mine, mine.back)
    if abs(inside - mine.before) < SMALLEST * max(1.0, float(np.ptp(outcome.shape.values))):
        return None
    others = sorted((one for one in jumps if one is not mine), key=lambda one: -one.far)
    told = [_went(one, mine.back) for one in others[:BESIDE]]
    step = trace.steps["step"]
    first, last = step[min(one.at for one in jumps)], step[mine.back - 1]
    text = f"In steps {first:g} to {last:g} {_went(mine, mine.back)} and then comes back"
    beside = f"; in the same steps {listed(told)}" if told else ""
    text += f"{beside}{_in_step(mine, inside, others)}."
    return Event(text, certain=True, moves_reward=False, after=_left(columns, mine))


def _began_again(trace: Trace, columns: list[Column], outcome: Column) -> Event | None:
    """The schedule starts from its beginning, after a long pause or where several columns jump: a
    run that was stopped and did not get back all that it had."""
    rate = column(trace, "learning_rate")
    if len(rate) < 2 * ROWS or not np.isfinite(rate).all():
        return None
    jumps = [one for one in jumps_of(trace, columns) if one.column.name != "learning_rate"]
    for at in begins_anew(rate):
        here = sorted((one for one in jumps if abs(one.at - at) <= NEAR), key=lambda one: -one.far)
        pause = _pause(column(trace, "time"), at)
        if not pause and len(here) < BESIDE:
            continue
        anew = f"the learning rate starts anew from {rate[at]:.2g} ({rate[at - 1]:.2g} before)"
        told = [*([anew] if pause else []), *(str(one) for one in here[:BESIDE])]
        begun = f"the run begins again, {pause}" if pause else anew
        falls = _falls_behind(outcome, float(trace.steps["step"][at]))
        text = f"At step {trace.steps['step'][at]:g} {begun}: {', '.join(told)}{falls}."
        return Event(text, certain=bool(falls), moves_reward=False)
    return None


def _pause(time: np.ndarray, at: int) -> str:
    """That the run stood still before a row, in words; empty where it did not."""
    if len(time) <= at or not np.isfinite(time).all():
        return ""
    apart = np.diff(time)
    waited, usual = float(apart[at - 1]), float(np.median(apart))
    if waited < LONG_PAUSE or waited < PAUSE * usual:
        return ""
    return f"{short(waited / HOUR)} hours after the step before (usually {short(usual)} seconds)"


def _falls_behind(outcome: Column, since: float) -> str:
    """How far the outcome falls after a step, and when it is back; empty where it does not."""
    values, step = outcome.shape.values, outcome.shape.step
    at = int(np.searchsorted(step, since))
    if at < ROWS or len(values) - at < ROWS:
        return ""
    before, off = typical(values[at - ROWS : at]), float(np.diff(values).std()) / 2**0.5
    around = np.lib.stride_tricks.sliding_window_view(values[at:], AFTER)
    later = np.median(around, axis=1)
    low = int(later.argmin())
    if before - later[low] < max(FAR * off, SMALLEST * max(1.0, float(np.ptp(values)))):
        return ""
    back = np.flatnonzero(later[low:] >= before)
    until = f" and is back by step {step[at + low + back[0]]:g}" if len(back) else ""
    falls = f"falls from {outcome.bare(before)} to {outcome.number(float(later[low]))}"
    return f"; {_subject(outcome)} {falls} until step {step[at + low]:g}{until}"


def _in_step(mine: Jump, level: float, others: list[Jump]) -> str:
    """That the outcome falls as far as a share does, so that what the share lacks counts as 0."""
    for one in others:
        if one.back is None or not _is_share(one.column) or not one.before > 0:
            continue
        share = _inside(one, one.back) / one.before
        before, inside = mine.before / one.before, level / _inside(one, one.back)
        if share < 1 - MOVED and abs(inside - before) <= STAYS * abs(before):
            name = one.column.subject
            return f"; divided by {name}, {_subject(mine.column)} stays at {short(inside)}"
    return ""


def _left(columns: list[Column], mine: Jump) -> str:
    """How the policy differs afterwards, further than it went by itself."""
    assert mine.back is not None
    told = []
    for one in (each for each in columns if each.name in POLICY):
        values = one.shape.values
        if len(values) != len(mine.column.shape.values):
            continue
        before, after, last = values[mine.at - ROWS : mine.at], values[mine.back :], values[-ROWS:]
        if mine.at < 2 * ROWS or len(after) < ROWS:
            continue
        drift = (before.mean() - values[mine.at - 2 * ROWS : mine.at - ROWS].mean()) / ROWS
        moves = [float(each.mean() - before.mean()) for each in (after, last)]
        far_on = len(values) - mine.at
        off, moved, usual = float(np.diff(before).std()), min(map(abs, moves)), abs(drift) * far_on
        if moves[0] * moves[1] > 0 and moved > max(
            FAR * off, usual, MOVED * abs(float(before.mean()))
        ):
            ends = (one.bare(typical(each)) for each in (before, after))
            told.append("{} is {} before it and {} since".format(one.subject, *ends))
    return sentence([listed(told)]) if told else ""


def _same(jump: Jump, outcome: Column) -> bool:
    return jump.column.name == outcome.name


def _inside(jump: Jump, back: int) -> float:
    return typical(jump.column.shape.values[jump.at : max(back, jump.at + 1)])


def _went(jump: Jump, back: int) -> str:
    one, inside = jump.column, _inside(jump, back)
    word = "rises" if inside > jump.before else "falls"
    return f"{_subject(one)} {word} from {one.bare(jump.before)} to {one.number(inside)}"


def _was_set(columns: list[Column], outcome: Column) -> Event | None:
    """Settings that were changed at the same step, and what the outcome does there."""
    changed = [one for one in columns if one.setting and len(one.shape.levels) <= BORDERS + 1]
    changed = [one for one in changed if one is not outcome and not is_evaluation(one.name)]
    if not changed:
        return None
    first = min(changed, key=_borders)
    together = [one for one in changed if _borders(one) == _borders(first)][: BESIDE + 1]
    borders = _borders(first)
    at = np.searchsorted(outcome.shape.step, borders)
    parts = np.split(outcome.shape.values, at)
    if min(map(len, parts)) < AFTER:
        return None
    levels = [typical(part) for part in parts]
    certain = outcome.shape.differs(borders) and _abrupt(parts)
    when = ("step " if len(borders) == 1 else "steps ") + listed([f"{each:g}" for each in borders])
    told = listed([_jumped(one) for one in together])
    goes = _to([short(level) for level in levels])
    moved = f"there {_subject(outcome)} goes from {goes}"
    unsure = "" if certain else ", which may be noise"
    gained = typical(outcome.shape.values[-len(parts[-1]) :]) - levels[0]
    return Event(
        f"At {when} {told}; {moved}{unsure}.",
        certain=certain,
        moves_reward=certain and len(borders) == 1 and gained > 0,
    )


def _borders(one: Column) -> list[float]:
    return [float(one.shape.step[at]) for at in one.shape.levels[1:]]


def _jumped(one: Column) -> str:
    values = [one.bare(float(one.shape.values[at])) for at in one.shape.levels]
    return f"{_subject(one)} goes from {_to(values)}"


def _to(levels: list[str]) -> str:
    return " and then to ".join([" to ".join(levels[:2]), *levels[2:]])


def _abrupt(parts: list[np.ndarray]) -> bool:
    """Whether the rows beside the first change show most of it."""
    before, after = parts[0], parts[1]
    beside = typical(after[: max(len(after) // 4, AFTER)]) - typical(
        before[-max(len(before) // 4, AFTER) :]
    )
    whole = typical(after) - typical(before)
    return bool(whole) and beside / whole >= MOST
