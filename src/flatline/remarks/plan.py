"""How far a run got: steps of its plan, passes over the data, learning rate, evaluations."""

import re
from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import column, metric
from flatline.hypotheses.held_out import COMPARED, change_of_score, course_of, repeats
from flatline.hypotheses.trend import FEWEST, LOST
from flatline.remarks.columns import HELD_OUT, Column, once, sentence, short
from flatline.remarks.remark import Remark
from flatline.remarks.shape import Noise, Shape
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain, times

_CLOCK = re.compile(
    r"_?(wall_?(time|clock)|runtime|elapsed(_time)?)(_(?P<unit>h|hours?|min|minutes?|s|sec|seconds?))?"
)
"""Names of the time since a run began."""
_EPOCH = re.compile(r"(\w+/)?epoch")
LITTLE = 0.5
"""Passes over the data below which they are told."""
FULL = 0.95
"""Share of its highest value above which a rate has not begun to fall."""
MANY = 10
"""Passes over the data from which on they are told."""
FEW_GAPS = 2
"""Places at which a log of every step lacks some, at most."""
TURNS = 4
"""Times that a schedule turns, at most: printed to few digits, it stands still now and then."""
TIME_OF_DAY = 1e9
"""Seconds that no run takes: they are counted since 1970."""
STAYS, CLOSE = 4, 0.25
"""Evaluations at the end, at least, and the share of the whole range that they keep within."""
HOUR = 3600.0
PAUSE, LONG_PAUSE = 20.0, 600.0
"""Times the usual step, and seconds, that nobody waits for a row of a run that goes on."""
LEAST_SAME, NEARLY_ALL = 6, 0.85
"""Evaluations that are exactly one number, at least, and as a share of those since the first."""
AROUND, JUMP, QUIET, FAR = 5, 2.0, 0.1, 3.0
"""Rows beside a jump of the rate; the factor that is one; the share of it that the rows beside it
may move by; and how many times the usual step it is."""
USUAL, FAR_BELOW = (1e-7, 1e-4), 10.0
"""Learning rates that people train policies with, and how far below is told."""
OVER = 1e-3
"""Share of its highest value at which a rate has gone to 0."""


def plan(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """What was planned and what was done."""
    done = [
        *_steps(trace),
        *_missing(trace),
        *_stood_still(trace),
        *_rate(trace),
        *_data(trace),
        *_time(trace),
    ]
    if done:
        yield Remark(52, " ".join(done))
    yield from (Remark(4, text) for text in _heldout(once(columns)))


def _steps(trace: Trace) -> Iterator[str]:
    planned, done = trace.settings.get("max_steps"), float(np.nanmax(trace.steps["step"]))
    if not isinstance(planned, int) or planned <= 0:
        return
    if done >= planned:
        yield f"All {planned} planned steps were made."
    else:
        yield f"{done:g} of {planned} planned steps were made ({done / planned:.0%})."


def _missing(trace: Trace) -> Iterator[str]:
    """Steps that a log leaves out, where it otherwise has every one."""
    step = np.unique(trace.steps["step"][trace.steps["step"] > 0])
    gaps = np.flatnonzero(np.diff(step) > 1)
    if len(step) < MANY * FEWEST or not 0 < len(gaps) <= FEW_GAPS:
        return
    told = [f"{step[at] + 1:g} to {step[at + 1] - 1:g}" for at in gaps]
    yield f"The log lacks steps {' and '.join(told)}."


def _stood_still(trace: Trace) -> Iterator[str]:
    """The longest pause of a run that was stopped and went on."""
    time, step = column(trace, "time"), trace.steps["step"]
    if len(time) < 2 or not np.isfinite(time).all():
        return
    at = int(np.diff(time).argmax()) + 1
    if waited := pause(trace, at):
        yield f"Step {step[at]:g} came {waited}."


def pause(trace: Trace, at: int) -> str:
    """That the run stood still before a row, in words; empty where it did not. Where the log goes
    back there, rows that do not count were written after the step before."""
    time, step = column(trace, "time"), trace.steps["step"]
    if len(time) <= at or not np.isfinite(time).all():
        return ""
    apart = np.diff(time)
    since = (trace.run.get("waited") or {}).get(f"{step[at]:g}")
    waited, usual = float(apart[at - 1] if since is None else since), float(np.median(apart))
    if waited < LONG_PAUSE or waited < PAUSE * usual:
        return ""
    after = "the step before" if since is None else "the row before"
    return f"{short(waited / HOUR)} hours after {after} (usually {short(usual)} seconds)"


def _rate(trace: Trace) -> Iterator[str]:
    rate, step = column(trace, "learning_rate"), trace.steps["step"]
    known = np.isfinite(rate) & (step > 0) if len(rate) else np.zeros(0, bool)
    if known.sum() < FEWEST:
        return
    yield from _goes_as(rate[known], step[known])
    yield from _tiny(float(rate[known].max()))


def _tiny(top: float) -> Iterator[str]:
    if 0 < top <= USUAL[0] / FAR_BELOW:
        times = float(f"{USUAL[0] / top:.1g}")
        low, high = (f"{one:.0e}" for one in USUAL)
        yield f"It is {times:g} times below the range that is usual, {low} to {high}."


def _goes_as(rate: np.ndarray, step: np.ndarray) -> Iterator[str]:
    """How a schedule goes."""
    top, first, last = float(rate.max()), float(rate[0]), float(rate[-1])
    at = int(rate.argmax())
    if np.ptp(rate) <= OVER * top:
        yield f"The learning rate stays at {top:.2g}."
    elif Shape(rate, step, Noise(1)).levels:
        return  # it jumps, which is told with what jumps at the same step
    elif jumps := jumps_in(rate):
        each = [f"from {rate[at - 1]:.2g} to {rate[at]:.2g} at step {step[at]:g}" for at in jumps]
        yield f"The learning rate jumps {', then '.join(each)}."
    elif len(anew := begins_anew(rate)):
        told = ", ".join(f"{step[at]:g} (from {rate[at]:.2g})" for at in anew)
        yield f"The learning rate rises to {top:.2g} and begins anew at step {told}."
    elif np.count_nonzero(np.diff(np.sign(np.diff(rate)[np.diff(rate) != 0]))) > TURNS:
        yield f"The learning rate goes up and down between {rate.min():.2g} and {top:.2g}."
    elif at == len(rate) - 1:
        yield f"The learning rate still rises, to {top:.2g} at step {step[-1]:g}: warm-up."
    elif first < top * (1 - OVER) and at > 1:
        after = f"then falls{_to(last, top)}" if last < FULL * top else "and stays there"
        ended = int(np.flatnonzero(rate)[-1]) + 1
        if len(rate) - ended >= MANY:
            after += f", where it is from step {step[ended]:g} on"
        yield f"The learning rate rises to {top:.2g} until step {step[at]:g}, {after}."
    else:
        yield f"The learning rate falls from {top:.2g}{_to(last, top)}."


def jumps_in(rate: np.ndarray) -> list[int]:
    """Rows at which a rate is at least doubled or halved at once, which otherwise goes its way:
    what a schedule does by itself it does in small steps, printed to few digits or not. One that
    comes back to where it was begins anew."""
    steps = np.abs(np.diff(rate))
    if len(rate) < 2 * AROUND or rate.min() < 0 or not steps.any():
        return []
    usual = float(np.median(steps[steps > 0]))
    found = []
    for at in range(AROUND, len(rate) - AROUND + 1):
        before, after = rate[at - AROUND : at], rate[at : at + AROUND]
        low, high = sorted((rate[at - 1], rate[at]))
        quiet = max(np.ptp(before), np.ptp(after)) <= QUIET * (high - low)
        up = bool(rate[at] > rate[at - 1])
        beyond = rate[:at].max() < high / 2 if up else rate[at:].max() < high / 2
        if high >= JUMP * low > 0 and beyond and quiet and high - low > FAR * usual:
            found.append(at)
    return found


def begins_anew(rate: np.ndarray) -> np.ndarray:
    """Rows at which a schedule starts from below again, as one does that was not resumed."""
    drops = np.flatnonzero(rate[1:] < LITTLE * rate[:-1]) + 1
    return np.array([at for at in drops if rate[at:].max() > rate[at] / LITTLE], dtype=int)


def _to(last: float, top: float) -> str:
    return " to 0" if last <= OVER * top else f" to {last:.2g}"


def _data(trace: Trace) -> Iterator[str]:
    name = next((one for one in trace.metric_names if _EPOCH.fullmatch(plain(one))), "epoch")
    epoch = metric(trace, name)
    done = float(np.nanmax(epoch)) if np.isfinite(epoch).any() else 1.0
    known = epoch[np.isfinite(epoch)]
    if len(known) and done >= 1 and (known == np.round(known)).all():
        done += known.min() == 0  # the number of the pass that is made, the first of them 0
    if 0 < done < LITTLE:
        yield f"{done:.2g} passes over the data: {done:.0%} of the prompts were seen."
    elif done >= MANY:
        yield f"{done:.0f} passes over the data: few prompts, seen again and again."
    elif len(known) and round(done, 2) > 1:
        yield f"{done:.3g} passes over the data."


def _heldout(columns: list[Column]) -> Iterator[str]:
    """What each evaluation shows. That the reward rises and it does not is said by H08."""
    seen: list[np.ndarray] = []
    for one in columns:
        values, step = one.shape.values, one.shape.step
        if one.words.rank != HELD_OUT or len(values) < 2 or repeats(one.values, seen):
            continue
        seen.append(one.values)
        best = int(values.argmax())
        first, last, most = (one.bare(values[at]) for at in (0, -1, best))
        told = f"{one.subject} is {first} at first, {last} at last and {most} at most (step "
        told += f"{step[best]:g}) in {len(values)} evaluations"
        yield sentence([told, *_goes(one), *(_the_same(one) or _since(one))])


def _goes(score: Column) -> Iterator[str]:
    """How a score that is evaluated now and then goes, where there are enough of it."""
    change = change_of_score(score.shape.values)
    course = course_of(score.shape.values, score.shape.step)
    if change is None or course is None:
        return
    last = (
        f"{score.bare(course.last)} in the last {COMPARED}, further below its best than noise goes"
    )
    if course.falls:
        then = "rises until then and falls since" if course.rises else "falls since then"
        best = score.shape.step[int(score.shape.values.argmax())]
        yield f"it {then}: {last}; the checkpoint to keep is of about step {best:g}"
        return
    moved = f"({change.value:+.3g} [{change.low:+.3g}, {change.high:+.3g}] between their halves)"
    if course.rises and change.high > 0 >= change.low:
        kept = course.best - course.last <= LOST * (course.best - course.first)
        since = f"since then it may fall ({score.bare(course.last)} in the last {COMPARED})"
        yield f"it rises, most of it early {moved}" if kept else f"it rises until then; {since}"
        return
    word = "rises" if change.low > 0 else "falls" if change.high < 0 else "does not surely move"
    yield f"it {word} {moved}"


def _the_same(score: Column) -> list[str]:
    """That it became exactly one number in nearly all evaluations, which a policy that goes on
    learning does not do."""
    values = score.shape.values
    last = float(np.median(values[-LEAST_SAME:]))
    rows = np.flatnonzero(values == last)
    if not 0 < last < 1 or len(rows) < LEAST_SAME or len(np.unique(values[: rows[0]])) < STAYS:
        return []
    since = len(values) - int(rows[0])
    if len(rows) < NEARLY_ALL * since:
        return []
    told = f"{len(rows)} of its last {since} are exactly {score.bare(last)}"
    return [f"{told}: perhaps one policy was evaluated again and again"]


def _since(score: Column) -> Iterator[str]:
    """Between what it stays at last, and since when."""
    since = _stays_since(score.shape.values)
    if since is not None:
        low, high = (score.bare(pick(score.shape.values[since:])) for pick in (min, max))
        yield f"it stays between {low} and {high} since step {score.shape.step[since]:g}"


def _stays_since(values: np.ndarray) -> int | None:
    """The evaluation since which all are close to each other, beside how far they went before."""
    for since in range(1, len(values) - max(STAYS, len(values) // 3) + 1):
        if np.ptp(values[since:]) <= CLOSE * np.ptp(values):
            return since
    return None


def _time(trace: Trace) -> Iterator[str]:
    """How long it took, where a column counts that."""
    for name in trace.metric_names:
        found = _CLOCK.fullmatch(plain(name))
        values = metric(trace, name)
        known = values[np.isfinite(values)]
        if name == trace.run.get("clock"):
            yield f"The run took {short(_all_of(known) * times(name))} seconds (`{name}`)."
            return
        if found is None or len(known) < FEWEST or not (np.diff(known) >= 0).all():
            continue
        unit = next(
            (one for one in ("hours", "minutes") if (found["unit"] or "s")[0] == one[0]), ""
        )
        since = known[0] if known[0] > TIME_OF_DAY else 0.0
        took = float(known[-1] - since)
        yield f"The run took {short(took)} {unit or 'seconds'} (`{name}`)."
        return


def _all_of(clock: np.ndarray) -> float:
    """What a clock shows at last, with what it had shown where it began anew."""
    return float(clock[-1] + clock[:-1][np.diff(clock) <= 0].sum())
