"""Whether a column of a log moved, told so that many columns may be asked."""

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.trend import rows_in_one, thirds, widened
from flatline.stats import Estimate, difference_of_means
from flatline.trace import Trace

SURE, SURER = 1.7, 2.5
"""Half-widths of its interval that a change must have, and where less than `FEW` rows are left of
a third: how alike they are is then hardly known. `python benchmarks/remarks.py` counts what is said
of noise."""
FEW = 10
STILL, KNOWN = 0.15, 0.25
"""Relative change that is none, and how well it must be known."""
LEFT = 6
"""Rows that a third must be worth for that, where neighbours are alike."""
MANY_TIMES, TOLD = 5.0, 3
"""Growth that announces that a run breaks, and columns that are told."""
SHORT = 30
"""Rows below which a column counts as smooth on the least sign of it."""


def column(trace: Trace, name: str) -> np.ndarray:
    """A column of the log by our name for it, NaN where a row lacks it; empty where all do."""
    return trace.steps[name] if name in trace.steps else np.zeros(0)


def metric(trace: Trace, name: str) -> np.ndarray:
    """The same by the log's own name."""
    try:
        return trace.metric(name)
    except NotRecorded:
        return np.zeros(0)


def change_of(
    values: np.ndarray, step: np.ndarray, *, careful: bool | None = None
) -> Estimate | None:
    """Last third less first; None where there are too few rows. Who is `careful` counts rows as
    alike on the least sign of it, as is done with few of them."""
    found = thirds(values, step) if len(values) else None
    if found is None:
        return None
    known = values[np.isfinite(values)]
    rows = rows_in_one(known, careful=len(known) < SHORT if careful is None else careful)
    return widened(difference_of_means(found.early, found.late), rows)


def surely(change: Estimate | None) -> int:
    """1 where it certainly rose, -1 where it fell, else 0."""
    if change is None or not np.isfinite(change.low):
        return 0
    half = (change.high - change.low) / 2
    times = SURE if change.n >= FEW else SURER
    return int(np.sign(change.value)) if abs(change.value) > times * half else 0


def ends(values: np.ndarray, step: np.ndarray) -> tuple[float, float]:
    """Mean of the first third and of the last."""
    found = thirds(values, step)
    assert found is not None
    return float(found.early.mean()), float(found.late.mean())


def stands(values: np.ndarray, step: np.ndarray) -> bool:
    """Whether a change that counts is excluded."""
    change = change_of(values, step)
    if change is None or not np.nanmax(values) > np.nanmin(values):
        return change is not None
    if surely(change) or change.n < LEFT:
        return False
    before, _ = ends(values, step)
    half = (change.high - change.low) / 2
    return abs(change.value) <= STILL * abs(before) and half <= KNOWN * abs(before)


def exploded(trace: Trace, at: float) -> str:
    """The columns that grew many times over before a step, those that grew most first, in words."""
    before = trace.steps["step"] < at
    grown: dict[str, tuple[float, float]] = {}
    for name in trace.metric_names:
        known = trace.metric(name)[before]
        known = known[np.isfinite(known)]
        if len(known) < SHORT // 2 or not known.min() > 0 or (np.diff(known) > 0).all():
            continue  # a counter grows anyhow
        usual, last = float(np.median(known[: len(known) // 2])), float(known[-1])
        if last >= MANY_TIMES * usual:
            grown[name] = usual, last
    most = sorted(grown, key=lambda name: -grown[name][1] / grown[name][0])[:TOLD]
    told = [f"`{name}` grew from {grown[name][0]:.3g} to {grown[name][1]:.3g}" for name in most]
    return f" Before that, {', '.join(told)}." if told else ""
