"""Rollouts that were sampled, ended, and never trained: are they the slow ones?"""

import numpy as np

from flatline.hypotheses.groups import prompts_of
from flatline.stats import Estimate, cluster_mean
from flatline.trace import Trace
from flatline.trace.memo import once

CUT = ("length", "turn_length", "turns", "context")
"""What a rollout that a limit cut is said to end with; leaving these out may be meant."""
LATE = ("abort", "aborted", "cancelled", "stale", "timeout")
"""What a rollout is said to end with that was given up for taking too long."""
SLOWER = 0.75
"""Chance that a rollout that is left out is longer than one that is kept; a half, which is that of
any two, must be ruled out."""
LEFT_OUT = 0.05
"""Share of the rollouts that are left out. Healthy: 0."""


@once
def left_out(trace: Trace) -> np.ndarray:
    """Rollouts that no limit cut and that have no trained token, or were given up."""
    lost = np.asarray(trace.rollouts["trained_tokens"] == 0)
    if "finish" not in trace.rollouts:
        return lost
    finish = trace.rollouts["finish"].astype(str)
    return np.asarray(lost & ~np.isin(finish, CUT) | np.isin(finish, LATE))


@once
def slower(trace: Trace) -> Estimate:
    """Chance that one that is left out is longer than one of the same step that is kept; `n` counts
    prompts."""
    length, step = trace.rollouts["completion_tokens"], trace.rollouts["step"]
    known = np.isfinite(length)
    lost, kept = left_out(trace) & known, ~left_out(trace) & known
    longer = np.full(len(length), np.nan)
    for one in np.unique(step[lost]):
        others = np.sort(length[kept & (step == one)])
        here = lost & (step == one)
        if len(others):
            below = np.searchsorted(others, length[here], "left")
            above = np.searchsorted(others, length[here], "right")
            longer[here] = (below + above) / (2 * len(others))  # of equal lengths, half count
    rows = np.flatnonzero(np.isfinite(longer))
    return cluster_mean(longer[rows], prompts_of(trace)[trace.groups().index[rows]])


def slow_are_left_out(trace: Trace) -> bool:
    """Whether what is left out is certainly what took longest."""
    chance = slower(trace)
    return bool(left_out(trace).mean() > LEFT_OUT and chance.value > SLOWER and chance.low > 0.5)
