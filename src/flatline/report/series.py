"""Numbers of a run as charts need them: by step, with intervals over prompts, bounded in size.

A large run is not drawn whole. What is left out is chosen evenly or by a fixed die, so that two
reports of one run show the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatline.errors import TraceError
from flatline.heldout import HeldOutScore, read_scores
from flatline.stats import Estimate, cluster_mean
from flatline.trace import Trace

SAMPLED_GROUPS = 2000
"""Groups in a scatter plot."""
BINS = 12
"""Stretches of steps where single steps have too few prompts to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a chart is drawn from."""

    trace: Trace
    """The recorded run or log."""
    folder: Path | None
    """Where it lies; None for a log or a trace in memory."""
    name: str
    """What it is called on the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means at places of an axis, each with its interval."""

    at: np.ndarray
    """Steps, or middles of stretches of steps."""
    estimates: Sequence[Estimate]
    """One per place."""

    @property
    def value(self) -> np.ndarray:
        """The means."""
        return np.array([one.value for one in self.estimates], dtype=float)

    @property
    def low(self) -> np.ndarray:
        """Lower ends; infinite where unknown."""
        return np.array([one.low for one in self.estimates], dtype=float)

    @property
    def high(self) -> np.ndarray:
        """Upper ends; infinite where unknown."""
        return np.array([one.high for one in self.estimates], dtype=float)


def means(values: np.ndarray, unit: np.ndarray, at: np.ndarray) -> Means:
    """Mean of rewards at every place of `at`, with an interval over `unit`: a group each."""
    known = np.isfinite(values)
    values, unit, at = values[known], unit[known], at[known]
    order = np.argsort(at, kind="stable")
    places, starts = np.unique(at[order], return_index=True)
    rows = np.split(order, starts[1:])
    bounds = bounds_of(values)
    found = [cluster_mean(values[one], unit[one], bounds=bounds) for one in rows if len(one)]
    return Means(at=places, estimates=found)


def stretches(step: np.ndarray, most: int = BINS) -> np.ndarray:
    """For every entry the middle of its stretch of steps; single steps where there are few."""
    steps = np.unique(step)
    if len(steps) <= most:
        return step
    index = np.searchsorted(steps, step) * most // len(steps)
    middles = [steps[np.arange(len(steps)) * most // len(steps) == i].mean() for i in range(most)]
    return np.array(middles)[index]


def smoothed(values: np.ndarray) -> np.ndarray:
    """Moving mean over a tenth of the run, centred. For the eye only: nothing is tested on it."""
    width = max(3, len(values) // 10)
    known = np.isfinite(values)
    window = np.ones(width)
    total = np.convolve(np.where(known, values, 0.0), window, mode="same")
    return np.asarray(total / np.maximum(np.convolve(known, window, mode="same"), 1))


def sampled(n: int, most: int) -> np.ndarray:
    """Which of `n` rows are drawn, in order; all where they are few."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, size=most, replace=False))


def heldout(run: Run) -> Means | None:
    """Held-out evaluations with intervals over problems, where the run kept every play."""
    found = heldout_plays(run)
    if not found:
        return None
    scores = [cluster_mean(x.rewards, x.problems, bounds=bounds_of(x.rewards)) for x in found]
    return Means(at=np.array([one.step for one in found]), estimates=scores)


def heldout_plays(run: Run) -> list[HeldOutScore]:
    """Every evaluation that the run kept play by play; none where the file cannot be read."""
    try:
        return read_scores(run.folder) if run.folder else []
    except TraceError as error:
        # The means are in the trace as well; what is lost is the interval.
        told = " ".join(str(error).splitlines()[:2])
        if told not in run.trace.warnings:
            run.trace.warnings.append(told)
        return []


def bounds_of(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """What rewards can be, as far as one can see: 0 to 1, or more where there was more."""
    rewards = np.asarray(values, dtype=float)
    return float(rewards.min(initial=0.0)), float(rewards.max(initial=1.0))


def finite(values: np.ndarray) -> np.ndarray:
    """Without what is no number."""
    return np.asarray(values[np.isfinite(values)])


def spans(values: np.ndarray) -> tuple[float, float]:
    """Smallest and largest number; NaN where there is none."""
    known = finite(values)
    return (float(known.min()), float(known.max())) if len(known) else (math.nan, math.nan)
