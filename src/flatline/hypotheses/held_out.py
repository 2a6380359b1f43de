"""Whether the held-out reward of a log follows its training reward."""

import numpy as np

from flatline.hypotheses.trend import FEWEST, trend_of
from flatline.stats import Estimate, difference_of_means
from flatline.trace import Trace


def heldout_change(trace: Trace) -> Estimate | None:
    """Later half of the evaluations less the earlier; None where there are too few."""
    if "heldout_reward" not in trace.steps:
        return None
    return change_of_score(trace.steps["heldout_reward"])


def change_of_score(score: np.ndarray) -> Estimate | None:
    """The same of any score that is evaluated now and then."""
    known = score[np.isfinite(score)]
    half = len(known) // 2
    return difference_of_means(known[:half], known[-half:]) if len(known) >= FEWEST else None


def left_behind(trace: Trace) -> Estimate | None:
    """How the held-out reward moves, where it certainly does not follow a training reward that
    certainly rises."""
    trend, change = trend_of(trace), heldout_change(trace)
    if len(trace.rollouts) or trend is None or change is None or not trend.rises:
        return None
    return None if change.low > 0 or change.high >= trend.change.low else change
