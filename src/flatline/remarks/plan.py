"""How far a run got: steps of its plan, passes over the data, learning rate, evaluations."""

from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import column, metric
from flatline.hypotheses.trend import FEWEST
from flatline.stats import difference_of_means
from flatline.trace import Trace

LITTLE = 0.5
"""Passes over the data below which they are told."""
FULL = 0.95
"""Share of its highest value above which a rate has not begun to fall."""
MANY = 10
"""Passes over the data from which on they are told."""
OVER = 1e-3
"""Share of its highest value at which a rate has gone to 0."""


def plan(trace: Trace) -> Iterator[str]:
    """What was planned and what was done."""
    yield from _steps(trace)
    yield from _rate(trace)
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
    if np.ptp(rate) <= OVER * top:
        yield f"The learning rate stays at {top:.2g}."
    elif at == len(rate) - 1:
        yield f"The learning rate still rises, to {top:.2g} at step {step[-1]:g}: warm-up."
    elif first < top * (1 - OVER) and at > 1:
        after = f"then falls{_to(last, top)}" if last < FULL * top else "and stays there"
        yield f"The learning rate rises to {top:.2g} until step {step[at]:g}, {after}."
    else:
        yield f"The learning rate falls from {top:.2g}{_to(last, top)}."


def _to(last: float, top: float) -> str:
    return " to 0" if last <= OVER * top else f" to {last:.2g}"


def _data(trace: Trace) -> Iterator[str]:
    epoch = metric(trace, "epoch")
    done = float(np.nanmax(epoch)) if np.isfinite(epoch).any() else 1.0
    if 0 < done < LITTLE:
        yield f"{done:.2g} passes over the data: {done:.0%} of the prompts were seen."
    elif done >= MANY:
        yield f"{done:.0f} passes over the data: few prompts, seen again and again."


def _heldout(trace: Trace) -> Iterator[str]:
    score = column(trace, "heldout_reward")
    known = score[np.isfinite(score)]
    if len(known) < FEWEST:
        return
    half = len(known) // 2
    change = difference_of_means(known[:half], known[-half:])
    moved = f"{change.value:+.3g} [{change.low:+.3g}, {change.high:+.3g}]"
    word = "rises" if change.low > 0 else "falls" if change.high < 0 else "does not surely move"
    yield f"The held-out reward {word}: {moved} between the halves of {len(known)} evaluations."
