"""Where a curve changes: steps between which its level certainly differs.

The split that parts a stretch best is taken where the means on both sides differ by more than
noise makes them differ at the best of all splits, and both sides are looked at again. Noise is
measured between neighbours, which hardly know a slope, and lasts the longer the more alike they
are. It is never below the rounding of the values: a mean of equal numbers differs from them by
that. A smoothed curve has no changes that could be determined.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flatline.stats import rounding_of

FEWEST = 30
"""Rows below which no change is looked for."""
SHORTEST = 4
"""Rows of a stretch, at least; a tenth of all where that is more."""
BEYOND = 4.5
"""Standard errors between two stretches. What is said of noise: `python benchmarks/remarks.py`."""
KEPT = BEYOND / 2
"""The same without the row of either that says so most."""
SMOOTH = 0.4
"""Likeness of neighbours from which on a curve was smoothed, and no change is looked for. Eight
real logs: at most 0.1."""
LARGEST = 4.5
"""Largest step that noise makes, in medians of all: three standard deviations."""
FEW_JUMPS = 2
"""Steps that may be larger, or a twentieth of all where that is more."""
AT_ONE_PLACE = 0.2
"""Share of the run that holds most large steps, where something happened there."""
SEEMS = 1.0
"""Standard errors of a slope that is not called none."""
TINY = 1e-18
"""Variance that is rounding."""


class Stretch(NamedTuple):
    """Rows between two changes."""

    first: int
    last: int
    """Places of its rows, both inside."""
    mean: float


def stretches(values: np.ndarray, *, noise: float = 1.0) -> list[Stretch]:
    """The stretches of a curve, one where it does not certainly change. No value may be NaN. What
    is measured as noise counts so many times."""
    off, shortest = noise * _noise(values), max(SHORTEST, len(values) // 10)
    cuts = [0, *_cuts(values, 0, off, shortest), len(values)]
    return [
        Stretch(first, end - 1, float(values[first:end].mean())) for first, end in pairwise(cuts)
    ]


def slope(values: np.ndarray) -> tuple[float, float]:
    """Change from row to row along a straight line, and its standard error for raw rows."""
    time = np.arange(len(values)) - (len(values) - 1) / 2
    size = float(time @ time)
    if len(values) < SHORTEST or size == 0:
        return 0.0, math.inf
    steep = float(time @ values) / size
    rest = values - values.mean() - steep * time
    off = math.sqrt(float(rest @ rest) / (len(values) - 2))
    return steep, max(off, rounding_of(values)) / math.sqrt(size)


def goes_on(values: np.ndarray, last: np.ndarray) -> bool:
    """Whether the last rows of a curve seem to go on as it went, half as steep or more."""
    steep, off = slope(last)
    usual = slope(values)[0]
    return bool(steep * np.sign(usual) > max(abs(usual) / 2, SEEMS * off))


def alike(values: np.ndarray) -> float:
    """How alike neighbours are, from 0 (raw) to 1 (smooth). The differences of raw values undo
    each other (a correlation of -0.5), those of a smoothed curve do not. Jumps say nothing."""
    apart, usual = _steps(values)
    rest = apart - apart[usual].mean() if usual.any() else apart
    both = usual[:-1] & usual[1:]
    size = float(np.mean(rest[usual] ** 2)) if both.any() else 0.0
    least = max(TINY, rounding_of(values) * rounding_of(values))
    if not least < size < math.inf:
        return 0.0
    return max(1 + 2 * float(np.mean(rest[:-1][both] * rest[1:][both])) / size, 0.0)


def _steps(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From each value to the next, and which of these steps are no jumps. Many large steps are
    noise, and no jumps, unless most are at one place."""
    apart = np.diff(values)
    most = LARGEST * float(np.median(np.abs(apart))) if len(apart) else 0.0
    usual = np.abs(apart) <= most
    rare = (~usual).sum() <= max(FEW_JUMPS, len(apart) // 20)
    if not rare:
        rare = _elsewhere(np.flatnonzero(~usual), len(apart)) <= max(FEW_JUMPS, len(apart) // 20)
    return apart, usual if rare else np.ones_like(usual)


def _elsewhere(large: np.ndarray, steps: int) -> int:
    """How many large steps are not at the place that holds most of them; all, where it holds less
    than three quarters."""
    ends = np.searchsorted(large, large + AT_ONE_PLACE * steps)
    most = int((ends - np.arange(len(large))).max())
    return len(large) - most if 4 * most >= 3 * len(large) else len(large)


def _noise(values: np.ndarray) -> float:
    """Standard error of a mean of one row, for rows that are as alike as these."""
    near = alike(values) if len(values) >= FEWEST else 1.0
    if near > SMOOTH:
        return math.inf
    apart, usual = _steps(values)
    between = float(np.mean(apart[usual] ** 2)) / 2
    return max(math.sqrt(between * (1 + near)) / (1 - near), rounding_of(values))


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
    cut = int(at[best])
    if not (apart[best] > BEYOND * noise and _without_extremes(values, cut) > KEPT * noise):
        return []
    return [
        *_cuts(values[:cut], start, noise, shortest),
        start + cut,
        *_cuts(values[cut:], start + cut, noise, shortest),
    ]


def _without_extremes(values: np.ndarray, cut: int) -> float:
    """How far the sides of a cut are apart without the row of each that says so most, in what noise
    makes of one row. A single row that is far off is no new level."""
    up = 1 if values[cut:].mean() > values[:cut].mean() else -1
    before, after = np.sort(up * values[:cut])[1:], np.sort(up * values[cut:])[:-1]
    return float((after.mean() - before.mean()) / np.sqrt(1 / len(before) + 1 / len(after)))
