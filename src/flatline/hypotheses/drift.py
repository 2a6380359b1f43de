"""How a quantity of the rollouts moved over a run: its first third of steps against its last.

The unit is a group, one visit to one prompt: rollouts of a group are not independent.
"""

from dataclasses import dataclass

import numpy as np

from flatline.hypotheses.trend import thirds
from flatline.stats import Estimate, difference_of_means
from flatline.trace import Trace

FIRST_GROUPS = 4
"""Groups that show where a run began: all of the steps that hold as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Where a quantity began and what it did."""

    before: float
    """Mean over the groups of the first third of the steps."""
    after: float
    """Mean over those of the last."""
    change: Estimate
    """`after - before`; `n` counts groups of the smaller third."""


def group_means(trace: Trace, values: np.ndarray) -> np.ndarray:
    """The mean of one value per rollout in each group; NaN where none of its values is known."""
    index, known = trace.groups().index, np.isfinite(values)
    size = np.bincount(index, known)
    total = np.bincount(index, np.where(known, values, 0.0))
    return np.where(size > 0, total / np.maximum(size, 1), np.nan)


def drift_of(trace: Trace, values: np.ndarray) -> Drift | None:
    """How one value per rollout drifts; None where there is no history to speak of."""
    found = thirds(group_means(trace, values), trace.groups().step)
    if found is None:
        return None
    return _between(found.early, found.late)


def since_start(trace: Trace, values: np.ndarray) -> Drift | None:
    """How one value per rollout differs between the first groups and the last third of the steps.

    What falls within two steps is over long before the first third ends.
    """
    means, step = group_means(trace, values), trace.groups().step
    found = thirds(means, step)
    known = np.isfinite(means)
    if found is None or known.sum() < FIRST_GROUPS:
        return None
    begun = np.sort(step[known])[FIRST_GROUPS - 1]
    return _between(means[known & (step <= begun)], found.late)


def _between(early: np.ndarray, late: np.ndarray) -> Drift:
    return Drift(
        before=float(early.mean()),
        after=float(late.mean()),
        change=difference_of_means(early, late),
    )


def first_rows(trace: Trace, groups: int) -> np.ndarray:
    """The rollouts of the first groups of a run."""
    first = np.argsort(trace.groups().step, kind="stable")[:groups]
    return np.flatnonzero(np.isin(trace.groups().index, first))


def began_with(trace: Trace, hit: np.ndarray, groups: int) -> np.ndarray:
    """The share of rollouts that a mark holds for, in each of the first groups of a run."""
    shares = group_means(trace, np.where(hit, 1.0, 0.0))
    order = np.argsort(trace.groups().step, kind="stable")[:groups]
    return np.asarray(shares[order])
