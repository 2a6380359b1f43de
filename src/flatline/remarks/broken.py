"""What breaks on the way and goes on so: gradients that are no number ever more often, and a part
of each step that is no longer done."""

import re
from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import metric
from flatline.hypotheses.logs import not_numbers
from flatline.remarks.columns import Column, listed, short
from flatline.remarks.remark import Event
from flatline.trace import Trace

THIRDS = 3
FEWEST, TIMES = 5, 3.0
"""Rows of the last third whose gradient is no number, at least, and how many times those of the
first."""
ROWS = 10
"""Rows that a part of a step takes as long as before, and then no time."""
NO_TIME = 0.05
"""Share of what it took at least, of what it takes at most once it is no longer done."""
MATTERS = 0.01
"""Share of a step that it took, where that is known; rounding makes little parts nothing."""
LEFT = 8.0
"""How many times as far from its level a column goes afterwards as its rows went before."""
SHOWN = 2
_SKIPPED = re.compile(r"skip|overflow")
_SCALE = re.compile(r"(^|[._/])((loss|grad|amp|fp16)_?)?scale(r)?$")
_TIMED = re.compile(r"(^|[._/ ])(tim(e|ing)(_s|_raw)?|perf)[._/]|(_time|_seconds|_sec|_s)$")


def gradients_fail(trace: Trace) -> Event | None:
    """Gradients that are no number ever more often, beside what is skipped and scaled for it."""
    bad = not_numbers(trace.steps, "grad_norm") if "grad_norm" in trace.steps else np.zeros(0, bool)
    parts = [int(part.sum()) for part in np.array_split(bad, THIRDS)]
    stays = bool(bad.any()) and bool(bad[int(bad.argmax()) :].all())  # which H26 tells
    if stays or parts[-1] < FEWEST + TIMES * parts[0]:
        return None
    sizes = [len(part) for part in np.array_split(bad, THIRDS)]
    shares = [f"{n} of {of}" for n, of in zip(parts, sizes, strict=True)]
    told = (
        f"{shares[0]} rows in the first third, {shares[1]} in the second, {shares[2]} in the last"
    )
    beside = [*_skipped(trace), *_scaled(trace)]
    more = f"; {listed(beside)}" if beside else ""
    text = f"Your gradient is infinite or NaN ever more often: {told}{more}."
    return Event(text, certain=True, moves_reward=False)


def _skipped(trace: Trace) -> Iterator[str]:
    """Counters of the updates that were not made."""
    for name, values in _named(trace, _SKIPPED):
        if (np.diff(values) >= 0).all() and values[-1] > values[0]:
            yield f"`{name}` counts up to {short(values[-1])}"


def _scaled(trace: Trace) -> Iterator[str]:
    """Scales of the loss, which are powers of two and are halved where a gradient overflows."""
    for name, values in _named(trace, _SCALE):
        powers = values.min() > 0 and bool((np.mod(np.log2(values), 1) == 0).all())
        if powers and values[-1] < values[0] / 2:
            at = trace.steps["step"][int(np.flatnonzero(values == values.min())[0])]
            low = f"{short(values.min())} (first at step {at:g})"
            yield f"`{name}`, the scale of the loss, sinks from {short(values[0])} to {low}"


def _named(trace: Trace, pattern: re.Pattern[str]) -> Iterator[tuple[str, np.ndarray]]:
    for name in trace.metric_names:
        values = metric(trace, name) if pattern.search(name.lower()) else np.zeros(0)
        if len(values) >= THIRDS and np.isfinite(values).all():
            yield name, values


def part_stops(trace: Trace, columns: list[Column]) -> Event | None:
    """A part of each step that takes no time from one row on, and what leaves its level then."""
    rows, step = len(trace.steps["step"]), trace.steps["step"]
    seconds = trace.steps["seconds"] if "seconds" in trace.steps else np.zeros(0)
    for one in columns:
        values = one.shape.values
        if not _TIMED.search(one.name.lower()) or len(values) != rows or rows < 2 * ROWS:
            continue
        most = np.maximum.accumulate(values[::-1])[::-1]
        least = np.minimum.accumulate(values)
        stops = np.flatnonzero(
            most[ROWS : rows - ROWS + 1] < NO_TIME * least[ROWS - 1 : rows - ROWS]
        )
        if not len(stops):
            continue
        at = ROWS + int(stops[0])
        took, takes = float(np.median(values[:at])), float(np.median(values[at:]))
        if len(seconds) and took < MATTERS * float(np.nanmedian(seconds[:at])):
            continue
        left = _left(columns, at)
        since = f"; since then {listed(left)}" if left else ""
        name = f"`{one.name}`" if one.ours else one.subject
        text = f"At step {step[at]:g} {name} falls from {short(took)} to {short(takes)} and stays "
        text += f"there: hardly anything of that part of a step is done any more{since}."
        return Event(text, certain=True, moves_reward=False)
    return None


def _left(columns: list[Column], at: int) -> list[str]:
    """Columns that stood still before a row and go far from there afterwards, farthest first."""
    far: dict[str, float] = {}
    for one in columns:
        values = one.shape.values
        if one.minor or one.name == "reward" or at < 2 * ROWS or len(values) < at + ROWS:
            continue
        before, last = values[at - 2 * ROWS : at], values[-ROWS:]
        spread = float(np.ptp(values[:at]))
        moved = abs(float(np.median(last) - np.median(before)))
        if spread > 0 and moved > LEFT * spread:
            ends = (
                f"from {one.bare(float(np.median(before)))} to {one.number(float(np.median(last)))}"
            )
            word = "rises" if np.median(last) > np.median(before) else "falls"
            far[f"{one.subject} {word} {ends}"] = moved / spread
    return sorted(far, key=lambda text: -far[text])[:SHOWN]
