"""The means that a trainer may honestly log of something that every trained token has.

Over tokens or over completions, of the whole step or pass by pass, with or without completions that
train nothing: releases of TRL differ, and none of these is wrong. What a log shows must lie between
the least and the largest of them.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of one pass."""

    total: float
    tokens: int
    means: float
    """Sum over completions of the mean of their tokens."""
    trained: int
    """Completions with a token that carries a loss."""
    rows: int


class Readings:
    """Of the passes of one step."""

    def __init__(self) -> None:
        self._passes: list[_Sums] = []

    def add(self, values_T: np.ndarray, row_T: np.ndarray, rows: int) -> None:
        """`row_T` says which of the pass's `rows` each token is of."""
        count_R = np.bincount(row_T, minlength=rows)
        sum_R = np.bincount(row_T, values_T.astype(np.float64), minlength=rows)
        means = float((sum_R / np.maximum(count_R, 1)).sum())
        trained = int((count_R > 0).sum())
        self._passes.append(_Sums(float(sum_R.sum()), len(row_T), means, trained, rows))

    def least_and_most(self) -> tuple[float, float]:
        """NaN where no pass has a token."""
        own = [one for one in self._passes if one.tokens]
        if not own:
            return np.nan, np.nan
        shares = [
            [(one.total, one.tokens) for one in own],
            [(one.means, one.trained) for one in own],
            [(one.means, one.rows) for one in self._passes],
        ]
        whole = [sum(a for a, _ in pairs) / sum(b for _, b in pairs) for pairs in shares]
        by_pass = [float(np.mean([a / b for a, b in pairs])) for pairs in shares]
        found = [*whole, *by_pass]
        return min(found), max(found)
