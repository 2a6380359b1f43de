"""Where a curve changes: steps between which its level certainly differs.

The split that parts a stretch best is taken where the means on both sides differ by more than
noise makes them differ at the best of all splits, and both sides are looked at again. Noise is
measured between neighbours, which hardly know a slope, and lasts the longer the more alike they
are. A smoothed curve has no changes that could be told.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

FEWEST = 30
"""Rows below which no change is looked for."""
SHORTEST = 4
"""Rows of a stretch, at least; a tenth of all where that is more."""
BEYOND = 4.5
"""Standard errors between two stretches. Of 4,000 logs of noise at most 0.5 % are said to change,
however alike neighbours are (`python benchmarks/trend.py --changes`)."""
SMOOTH = 0.4
"""Likeness of neighbours from which on a curve was smoothed, and no change is looked for. Eight
real logs: at most 0.1."""
LARGEST = 4.5
"""Largest step that noise makes, in medians of all: three standard deviations."""
TINY = 1e-18
"""Variance that is rounding."""


class Stretch(NamedTuple):
    """Rows between two changes."""

    first: int
    last: int
    """Places of its rows, both inside."""
    mean: float


def stretches(values: np.ndarray) -> list[Stretch]:
    """The stretches of a curve, one where it does not certainly change. No value may be NaN."""
    cuts = [0, *_cuts(values, 0, _noise(values), max(SHORTEST, len(values) // 10)), len(values)]
    return [
        Stretch(first, end - 1, float(values[first:end].mean())) for first, end in pairwise(cuts)
    ]


def alike(values: np.ndarray) -> float:
    """How alike neighbours are, from 0 (raw) to 1 (smooth). The differences of raw values undo
    each other (a correlation of -0.5), those of a smoothed curve do not."""
    apart = _steps(values)
    rest = apart - apart.mean()
    size = float(rest @ rest)
    if not TINY * len(rest) < size < math.inf:
        return 0.0
    return max(1 + 2 * float(rest[:-1] @ rest[1:]) / size, 0.0)


def _steps(values: np.ndarray) -> np.ndarray:
    """From each value to the next; a jump counts as the largest step that noise makes."""
    apart = np.diff(values)
    most = LARGEST * float(np.median(np.abs(apart)))
    return np.clip(apart, -most, most) if most else apart


def _noise(values: np.ndarray) -> float:
    """Standard error of a mean of one row, for rows that are as alike as these."""
    near = alike(values) if len(values) >= FEWEST else 1.0
    if near > SMOOTH:
        return math.inf
    between = float(np.mean(_steps(values) ** 2)) / 2
    return math.sqrt(between * (1 + near)) / (1 - near)


def _cuts(values: np.ndarray, start: int, noise: float, shortest: int) -> list[int]:
    """Where stretches begin, the first left out."""
    n = len(values)
    if n < 2 * shortest or not math.isfinite(noise):
        return []
    at = np.arange(shortest, n - shortest + 1)
    before = np.cumsum(values)[at - 1] / at
    after = (values.sum() - before * at) / (n - at)
    apart = np.abs(after - before) / np.sqrt(1 / at + 1 / (n - at))
    best = int(apart.argmax())
    if not apart[best] > BEYOND * noise:
        return []
    cut = int(at[best])
    return [
        *_cuts(values[:cut], start, noise, shortest),
        start + cut,
        *_cuts(values[cut:], start + cut, noise, shortest),
    ]
