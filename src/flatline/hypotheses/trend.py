"""Does the reward move at all? Asked of the raw rewards, never of a smoothed curve.

The first third of the steps is compared with the last. The unit is a group, one visit to one
prompt: its rollouts are not independent, so they count once.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.logs import rows_in_words
from flatline.stats import Estimate, difference_of_means
from flatline.trace import Trace
from flatline.trace.once import once

FEWEST = 6
"""Steps below which thirds are too short to compare."""
SMALLEST = 0.05
"""A change of the reward that matters, where rewards are 0 to 1; of their span where they go
further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How the training reward moved over a run."""

    change: Estimate
    """Last third minus first third of the steps; `n` counts groups of the smaller third."""
    lately: Estimate
    """Last third minus what is between."""
    text: str
    """The same in a sentence."""
    flat: bool | None
    """True: a rise that matters is excluded. False: it moves. None: cannot tell yet."""
    smallest: float
    """The rise that matters."""

    def to_json(self) -> dict[str, Any]:
        """The stable shape."""
        return {"change": self.change.to_json(), "flat": self.flat, "text": self.text}


@once
def trend_of(trace: Trace) -> Trend | None:
    """The trend of the training reward; None where there is no history to speak of."""
    try:
        values, step = _by_unit(trace)
    except NotRecorded:
        return None
    found = thirds(values, step)
    if found is None:
        return None
    change = difference_of_means(found.early, found.late)
    told = f"{found.steps} steps" if len(trace.rollouts) else rows_in_words(found.steps, step)
    smallest = SMALLEST * max(1.0, float(np.ptp(values[np.isfinite(values)])))
    return Trend(
        change=change,
        lately=difference_of_means(found.middle, found.late),
        text=_text(change, found.steps, smallest, told),
        flat=_flat(change, smallest),
        smallest=smallest,
    )


class Thirds(NamedTuple):
    """Known values of the first third of the steps, of the last, and of those between."""

    early: np.ndarray
    middle: np.ndarray
    late: np.ndarray
    steps: int
    """That have any."""


def thirds(values: np.ndarray, step: np.ndarray) -> Thirds | None:
    """Split values, each with its step; None where there is no history to speak of."""
    known = np.isfinite(values)
    values, step = values[known], step[known]
    steps = np.unique(step)
    if len(steps) < FEWEST:
        return None
    third = len(steps) // 3
    early, late = step <= steps[third - 1], step >= steps[-third]
    return Thirds(values[early], values[~early & ~late], values[late], len(steps))


def _by_unit(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """One reward per group where rollouts were recorded, else one per step."""
    if len(trace.rollouts):
        groups = trace.groups()
        return groups.known("reward").each(lambda rows: rows.mean(axis=-1)), groups.step
    return trace.steps["reward"], trace.steps["step"]


def _flat(change: Estimate, smallest: float) -> bool | None:
    if change.low > 0 or change.high < 0:
        return False
    return True if change.high < smallest else None


def _text(change: Estimate, steps: int, smallest: float, told: str) -> str:
    moved = f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
    if change.low > 0:
        return f"The training reward rises by {moved} over {told}."
    if change.high < 0:
        return f"The training reward falls by {moved} over {told}."
    if change.high < smallest:
        return f"The training reward is flat: {moved} over {told}."
    return (
        f"Whether the training reward moves cannot be told from {told} ({moved}); "
        f"about {_more(change, steps, smallest)} more would tell."
    )


def _more(change: Estimate, steps: int, smallest: float) -> int:
    """Steps until the interval excludes no rise or a rise that matters, if the mean stays."""
    half = (change.high - change.low) / 2
    if not math.isfinite(half):
        return steps
    enough = max(change.value, smallest - change.value)
    return max(1, math.ceil(steps * ((half / enough) ** 2 - 1)))
