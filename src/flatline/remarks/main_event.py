"""The event that a log is about: what its reader is told first where no cause was found.

Somebody changed a setting on the way, or several columns left their level at one step, what counts
as success among them. It is told as what was seen: no cause is proved by what happens together.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from flatline.hypotheses.held_out import is_evaluation
from flatline.hypotheses.logs import imported
from flatline.hypotheses.trend import SMALLEST, Trend, trend_of
from flatline.remarks.broken import gradients_fail, part_stops
from flatline.remarks.columns import (
    HELD_OUT,
    POLICY,
    SPREAD,
    Column,
    columns_of,
    listed,
    once,
    sentence,
    short,
    yours,
)
from flatline.remarks.event import AFTER, FAR, Jump, jumps_of
from flatline.remarks.leaving import parts_company, steps_away
from flatline.remarks.outage import Outage, outages_of, spans, told_of, without
from flatline.remarks.plan import jumps_in
from flatline.remarks.remark import Event
from flatline.remarks.rescaled import scale_event, trend_by_scale
from flatline.remarks.resumed import began_again
from flatline.remarks.shape import MOST, typical
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

BESIDE = 2
"""Columns that are told with the outcome."""
BORDERS = 2
"""Times that a setting was changed, at most, to be told as one event."""
MOVED, STAYS = 0.2, 0.05
"""Relative change of a share that is one, and of a quotient that is none."""
TWICE = 2.0
"""Factor from which on it is told by how much a setting was raised."""
MOSTLY = 0.7
"""Share of a fall that a share must explain."""
SAME_AGAIN = 0.9
"""Share of its way that a column has come back, where what moved it has passed."""
ROWS = 10
"""Rows before and after an event that show what it left behind."""
_SUCCESS = re.compile(
    r"(^|[._/])(solved?|success|correct|acc|accuracy|pass(ed)?)(_rate)?($|[._/@])"
)
"""What stands for the reward in a log that has none under a name that is known."""


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
            scale_event(trace, columns)
            or _was_set(trace, columns, outcome)
            or _is_out(columns, outcome)
            or _passes(trace, columns, outcome)
            or began_again(trace, columns, outcome)
            or part_stops(trace, columns)
            or gradients_fail(trace)
            or parts_company(columns)
            or steps_away(columns, outcome)
        )


def trend_told(trace: Trace) -> Trend | None:
    """How the reward moves; of a log whose reward changes its scale, on each side of that."""
    if not imported(trace) or len(trace.rollouts) or not len(trace.steps):
        return trend_of(trace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        columns = once(columns_of(trace))
        reward = next((one for one in columns if one.name == "reward"), None)
        outages = outages_of(reward) if reward is not None else []
        if reward is None or not outages:
            return trend_by_scale(trace, columns)
        kept = without(trace, outages, reward)
        trend = trend_by_scale(kept, once(columns_of(kept)))
        left_out = f" Left out: {spans(outages, reward)}, in which it is gone."
        return trend and replace(trend, text=trend.text + left_out)


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


def _passes(trace: Trace, columns: list[Column], outcome: Column) -> Event | None:
    """Several columns leave their level at a step, the outcome among them, and it comes back."""
    jumps = jumps_of(trace, columns)
    mine = next((one for one in jumps if one.column is outcome or _same(one, outcome)), None)
    if mine is None or mine.back is None or mine.far <= FAR:
        jumps = _in_one_window(columns, outcome)
        mine = jumps[0] if jumps else None
    if mine is None or mine.back is None or mine.back - mine.at < AFTER:
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


def _is_out(columns: list[Column], outcome: Column) -> Event | None:
    """The outcome is gone for some rows, and comes back at once; that may happen several times."""
    outages = outages_of(outcome)
    if not outages:
        return None
    out = max(outages, key=len)
    values = outcome.shape.values
    least = float(values[out.inside].min())
    mine = Jump(outcome, out.start, typical(values[out.before]), least, out.back, FAR)
    text = told_of(outages, outcome, columns)
    return Event(text, certain=True, moves_reward=False, after=_left(columns, mine, outages))


def _in_one_window(columns: list[Column], outcome: Column) -> list[Jump]:
    """Columns that leave their level for the same stretch of rows, and the outcome, which comes
    first and may take some rows to go and to come back; empty where there is no such stretch."""
    rows = len(outcome.shape)
    whole = [one for one in columns if not one.minor and len(one.shape) == rows]
    windows = {one.name: at for one in whole if one is not outcome and (at := _window(one))}
    if not windows:
        return []
    shared = [
        [name for name, its in windows.items() if np.abs(np.subtract(at, its)).max() <= AFTER]
        for at in windows.values()
    ]
    most = max(shared, key=len)
    start, back = min(windows[name][0] for name in most), max(windows[name][1] for name in most)
    if len(most) < BESIDE or start < ROWS or rows - back < ROWS:
        return []
    if not outcome.shape.differs([float(outcome.shape.step[at]) for at in (start, back)]):
        return []
    mine = _left_for(outcome, start, back)
    after = typical(outcome.shape.values[back : back + ROWS])
    lost = mine.before - _inside(mine, back)
    if lost <= 0 or mine.before - after > lost / 2:
        return []
    return [mine, *(_left_for(one, *windows[one.name]) for one in whole if one.name in most)]


def _window(one: Column) -> tuple[int, int] | None:
    """The rows between which a column is at another level, no longer than half of the run."""
    if len(one.shape.cuts) != BORDERS + 1 or one.shape.levels:
        return None
    before, inside, after = (typical(piece) for piece in one.shape.pieces)
    start, back = one.shape.cuts[1:]
    passes = abs(after - before) <= (1 - SAME_AGAIN) * abs(inside - before)
    return (start, back) if passes and 2 * (back - start) <= len(one.shape) else None


def _left_for(one: Column, start: int, back: int) -> Jump:
    values = one.shape.values
    before = values[max(start - 2 * ROWS, 0) : start]
    inside = values[start:back]
    most = float(inside[np.abs(inside - typical(before)).argmax()])
    off = float(np.diff(values).std()) / 2**0.5
    far = abs(typical(inside) - typical(before)) / off
    return Jump(one, start, typical(before), most, back, far)


def _in_step(mine: Jump, level: float, others: list[Jump]) -> str:
    """That the outcome falls as far as a share does, so that what the share lacks counts as 0; or
    as far as one rises, which then counts as 0 itself."""
    assert mine.back is not None
    here = slice(mine.at, max(mine.back, mine.at + 1))
    for one in others:
        if one.back is None or not _is_share(one.column) or not 0 < one.before < 1:
            continue
        if one.column.part or one.column.words is SPREAD or one.column.name == "reward_std_within":
            continue  # it is of the reward itself
        name, usual, share = one.column.subject, one.before, one.column.shape.values[here]
        if _inside(one, one.back) > usual:
            name, usual, share = f"what {name} leaves", 1 - usual, 1 - share
        if not share.min() > 0 or typical(share) > (1 - MOVED) * usual:
            continue
        before, inside = mine.before / usual, typical(mine.column.shape.values[here] / share)
        explained = 1 - (before - inside) / (mine.before - level)
        if not explained >= MOSTLY:
            continue
        if abs(inside - before) <= STAYS * abs(before):
            goes = f"stays at {short(inside)}"
        elif inside > before:
            goes = f"does not fall ({short(before)} to {short(inside)})"
        else:
            goes = f"goes from {short(before)} to {short(inside)}: most of the fall is that"
        return f"; divided by {name}, {yours(mine.column)} {goes}"
    return ""


def _left(columns: list[Column], mine: Jump, outages: Sequence[Outage] = ()) -> str:
    """How the policy differs afterwards, further than it went by itself, and what was measured in
    the event, or in all of its kind."""
    assert mine.back is not None
    told, stays = list(_not_at_once(mine, mine.back)), set()
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
            stays.add(one.name)
    rows = [(one.start, one.back) for one in outages] or [(mine.at, mine.back)]
    told = [
        *_meanwhile([one for one in columns if one.name not in stays], mine),
        *_taken_in(columns, mine.column, rows),
        *told,
    ]
    return sentence([listed(told)]) if told else ""


def _meanwhile(columns: list[Column], mine: Jump) -> Iterator[str]:
    """Where the policy has come to by the end of it."""
    assert mine.back is not None
    rows = len(mine.column.shape.values)
    for one in (each for each in columns if each.name in POLICY and len(each.shape) == rows):
        before = one.shape.values[mine.at - ROWS : mine.at]
        last = one.shape.values[max(mine.back - ROWS // 2, mine.at) : mine.back]
        off = float(np.diff(one.shape.values).std()) / 2**0.5
        moved = abs(typical(last) - typical(before))
        usual = abs(
            typical(before) - typical(one.shape.values[mine.at - 2 * ROWS : mine.at - ROWS])
        )
        if len(before) == ROWS <= mine.at - ROWS and moved > max(FAR * off / 2, 2 * usual):
            ends = f"from {one.bare(typical(before))} to {one.number(typical(last))}"
            yield f"{one.subject} goes {ends} meanwhile"


def _taken_in(
    columns: list[Column], outcome: Column, stretches: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Scores that were taken in these rows."""
    step = outcome.shape.step
    for one in (each for each in columns if each.words.rank == HELD_OUT):
        inside = np.zeros(len(one.shape), bool)
        for start, back in stretches:
            inside |= (one.shape.step >= step[start]) & (one.shape.step <= step[back - 1])
        if inside.any() and not inside.all():
            steps = listed([f"{at:g}" for at in one.shape.step[inside]])
            values = listed([one.bare(float(value)) for value in one.shape.values[inside]])
            word = "step" if inside.sum() == 1 else "steps"
            yield f"{one.subject} of {word} {steps} ({values}) was taken in these steps"


def _not_at_once(mine: Jump, back: int) -> Iterator[str]:
    """That the outcome is below its level still when all else is over."""
    values, step = mine.column.shape.values, mine.column.shape.step
    around = np.lib.stride_tricks.sliding_window_view(values[back:], ROWS).mean(axis=1)
    off = float(np.diff(values).std()) / 2**0.5 / ROWS**0.5
    if not len(around) or mine.before - around[0] < FAR * off:
        return
    again = np.flatnonzero(around >= mine.before)
    subject, level = mine.column.subject, mine.column.number(float(around[0]))
    until = f"and as before from step {step[back + again[0]]:g} on" if len(again) else "at first"
    yield f"{subject} is still only {level} right after it, {until}"


def _same(jump: Jump, outcome: Column) -> bool:
    return jump.column.name == outcome.name


def _inside(jump: Jump, back: int) -> float:
    return typical(jump.column.shape.values[jump.at : max(back, jump.at + 1)])


def _went(jump: Jump, back: int) -> str:
    one, inside = jump.column, _inside(jump, back)
    values = one.shape.values[jump.at : back]
    zeros = int((values == 0).sum())
    if jump.before and len(values) > zeros >= MOSTLY * len(values):
        rows = f"0 in {zeros} of {len(values)} rows"
        return f"{yours(one)}, {one.bare(jump.before)} before, is exactly {rows}"
    word = "rises" if inside > jump.before else "falls"
    return f"{yours(one)} {word} from {one.bare(jump.before)} to {one.number(inside)}"


def _was_set(trace: Trace, columns: list[Column], outcome: Column) -> Event | None:
    """Settings that were changed at the same step, and what the outcome does there."""
    changed = [one for one in columns if 1 < len(_levels(one)) <= BORDERS + 1]
    changed = [one for one in changed if one is not outcome and not is_evaluation(one.name)]
    if not changed or outcome.shape.constant:
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
    off = float(np.diff(outcome.shape.values).std()) / 2**0.5
    differs = outcome.shape.differs(borders) or float(np.ptp(levels)) > FAR * off
    when = ("step " if len(borders) == 1 else "steps ") + listed([f"{each:g}" for each in borders])
    told = listed([_jumped(one) for one in together])
    goes = _to([short(level) for level in levels])
    moved = f"there {yours(outcome)} goes from {goes}"
    if differs and not certain:
        moved = f"{yours(outcome)}, {goes} on average, does not jump there"
    if not differs and all(one.minor for one in together):
        return None  # bookkeeping that moved nothing
    unsure = "" if differs else ", which may be noise"
    beside = _beside(jumps_of(trace, columns), [*together, outcome], borders[0])
    gained = typical(outcome.shape.values[-len(parts[-1]) :]) - levels[0]
    return Event(
        f"At {when} {told}{beside}; {moved}{unsure}.",
        certain=certain,
        moves_reward=certain and len(borders) == 1 and gained > 0,
    )


def _levels(one: Column) -> list[int]:
    """The rows at which somebody set a column to another value, the first row included."""
    if one.setting:
        return one.shape.levels
    return [0, *jumps_in(one.shape.values)] if one.name == "learning_rate" else []


def _beside(jumps: list[Jump], told: list[Column], border: float) -> str:
    """What else jumps there, as far as it is no part of what is told."""
    names = [one.name for one in told]
    near = [
        one
        for one in jumps
        if one.column.name not in names
        and abs(int(np.searchsorted(one.column.shape.step, border)) - one.at) <= AFTER
    ]
    far = sorted(near, key=lambda one: -one.far)[:BESIDE]
    return f"; at the same step {listed([str(one) for one in far])}" if far else ""


def _borders(one: Column) -> list[float]:
    return [float(one.shape.step[at]) for at in _levels(one)[1:]]


def _jumped(one: Column) -> str:
    begins = _levels(one)[1:]
    values = [float(one.shape.values[at]) for at in (begins[0] - 1, *begins)]
    once = one.name == "learning_rate" and len(values) == 2 and values[0] > 0
    times = values[1] / values[0] if once else 1.0
    more = f" ({times:.3g} times as high)" if times >= TWICE else ""
    return f"{yours(one)} goes from {_to([one.bare(value) for value in values])}{more}"


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
