"""How far a run got: steps of its plan, passes over the data, learning rate, evaluations."""

import re
from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import column, metric
from flatline.hypotheses.held_out import heldout_change, left_behind
from flatline.hypotheses.trend import FEWEST
from flatline.trace import Trace

LITTLE = 0.5
"""Passes over the data below which they are told."""
FULL = 0.95
"""Share of its highest value above which a rate has not begun to fall."""
MANY = 10
"""Passes over the data from which on they are told."""
OVER = 1e-3
"""Share of its highest value at which a rate has gone to 0."""


LEVELS, HELD = 4, 5
"""Levels of a column that is constant but for jumps, at most, and rows of each, at least."""
_FUNCTION = re.compile("rewards/")
"""A part of the reward is no setting."""


def plan(trace: Trace) -> Iterator[str]:
    """What was planned and what was done."""
    yield from _steps(trace)
    yield from _rate(trace)
    yield from _changed(trace)
    yield from _data(trace)
    yield from _heldout(trace)


def _steps(trace: Trace) -> Iterator[str]:
    planned, done = trace.settings.get("max_steps"), float(np.nanmax(trace.steps["step"]))
    if not isinstance(planned, int) or planned <= 0:
        return
    if done >= planned:
        yield f"All {planned} planned steps were made."
    else:
        yield f"{done:g} of {planned} planned steps were made ({done / planned:.0%})."


def _rate(trace: Trace) -> Iterator[str]:
    rate, step = column(trace, "learning_rate"), trace.steps["step"]
    known = np.isfinite(rate) & (step > 0) if len(rate) else np.zeros(0, bool)
    if known.sum() < FEWEST:
        return
    rate, step = rate[known], step[known]
    top, first, last = float(rate.max()), float(rate[0]), float(rate[-1])
    at = int(rate.argmax())
    levels = _levels(rate)
    if np.ptp(rate) <= OVER * top:
        yield f"The learning rate stays at {top:.2g}."
    elif levels:
        yield f"The learning rate {_told_levels(rate, step, levels)}."
    elif at == len(rate) - 1:
        yield f"The learning rate still rises, to {top:.2g} at step {step[-1]:g}: warm-up."
    elif first < top * (1 - OVER) and at > 1:
        after = f"then falls{_to(last, top)}" if last < FULL * top else "and stays there"
        yield f"The learning rate rises to {top:.2g} until step {step[at]:g}, {after}."
    else:
        yield f"The learning rate falls from {top:.2g}{_to(last, top)}."


def _levels(values: np.ndarray) -> list[int]:
    """Where each level begins, of a column that is constant but for a few jumps."""
    begins = [0, *(np.flatnonzero(np.diff(values)) + 1)]
    lengths = np.diff([*begins, len(values)])
    few = 2 <= len(begins) <= LEVELS and lengths.min() >= HELD
    return [int(at) for at in begins] if few else []


def _told_levels(values: np.ndarray, step: np.ndarray, levels: list[int]) -> str:
    jumps = [f"to {values[at]:.2g} at step {step[at]:g}" for at in levels[1:]]
    return f"jumps from {values[0]:.2g} {', then '.join(jumps)}"


def _changed(trace: Trace) -> Iterator[str]:
    """A setting among the columns that somebody changed on the way, whatever it is called."""
    filled = set((trace.run.get("aliases") or {}).values())
    for name in trace.metric_names:
        values = metric(trace, name)
        known = np.isfinite(values)
        if name in filled or known.sum() < 2 * FEWEST or _FUNCTION.search(name):
            continue
        levels = _levels(values[known])
        if levels and (values[known] != 0).all():
            yield f"`{name}` {_told_levels(values[known], trace.steps['step'][known], levels)}."


def _to(last: float, top: float) -> str:
    return " to 0" if last <= OVER * top else f" to {last:.2g}"


def _data(trace: Trace) -> Iterator[str]:
    epoch = metric(trace, "epoch")
    done = float(np.nanmax(epoch)) if np.isfinite(epoch).any() else 1.0
    if 0 < done < LITTLE:
        yield f"{done:.2g} passes over the data: {done:.0%} of the prompts were seen."
    elif done >= MANY:
        yield f"{done:.0f} passes over the data: few prompts, seen again and again."
    elif np.isfinite(epoch).any() and done > 1:
        yield f"{done:.3g} passes over the data."


def _heldout(trace: Trace) -> Iterator[str]:
    change = heldout_change(trace)
    if change is None or left_behind(trace) is not None:  # H08 says that
        return
    moved = f"{change.value:+.3g} [{change.low:+.3g}, {change.high:+.3g}]"
    word = "rises" if change.low > 0 else "falls" if change.high < 0 else "does not surely move"
    evaluations = int(np.isfinite(column(trace, "heldout_reward")).sum())
    yield f"The held-out reward {word}: {moved} between the halves of {evaluations} evaluations."
