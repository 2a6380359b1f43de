"""Rewards that depend on where a rollout stands in its batch: what comes late is never paid.

Rows are drawn at random, so no place is better than another. A judge with a time limit that counts
the queue, or a list that is too short, pays the first rows alone.
"""

from typing import NamedTuple

import numpy as np

from flatline.trace import Trace

FEWEST = 16
"""Groups behind the place that must show it."""
BY_CHANCE, LEAST = 1e-6, 1e-12
"""How likely as many groups may go without pay by chance; rows may be dealt out on purpose, so it
is never said to be impossible."""


class Late(NamedTuple):
    """Where pay ends."""

    place: int
    """The first row of a batch that is never paid, nor any behind it."""
    groups: int
    """Groups behind it."""
    paid_before: float
    """Share of the groups before it in which somebody is paid."""
    by_chance: float


def never_paid_behind(trace: Trace) -> Late | None:
    """None where late rows are paid as well, or where that cannot be told."""
    table = trace.rollouts
    if trace.settings.get("shuffle_dataset") is False or "reward" not in table:
        return None
    reward, place = table["reward"], table["rollout"]
    known = np.isfinite(reward)
    paid = known & (reward > reward[known].min(initial=np.inf))
    if not paid.any():
        return None
    end = int(place[paid].max()) + 1
    index = trace.groups().index
    first = np.full(index.max() + 1, np.inf)
    np.minimum.at(first, index, place)
    some = np.bincount(index, paid, minlength=len(first)) > 0
    behind = first >= end
    share = float(some[~behind].mean())
    chance = (1 - share) ** int(behind.sum())
    if behind.sum() < FEWEST or chance > BY_CHANCE:
        return None
    return Late(end, int(behind.sum()), share, max(chance, LEAST))
