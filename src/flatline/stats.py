"""Numbers with their interval. Array in, `Estimate` out; `n` is problems or seeds, never rollouts.

Means of bounded values get a Wilson score interval at the *effective* number of problems. Wilson,
because rewards sit near 0 or 1, where a symmetric interval misses too often and has no width at all
once every value is equal. Effective, because the plays of one problem are not independent: the
variance is measured between problems and expressed as the number of coin flips that would have it.

Means over seeds are means of a few numbers without bounds: they get Student's interval. Who looks
at them more than once, as the runs come in, asks `sequential_level` how wide it has to be.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatline.tails import students, students_slope

LEVEL = 0.95
"""Coverage an interval aims at, unless it is asked for another one."""
UNSEEN = 1.0
"""Weight, in problems, of the widest possible spread in every variance: what was never seen."""
DRAWS = 400_000
"""Simulated experiments behind `sequential_level`: alpha 0.05 is met to 0.0007 (two sigma)."""
MANY_FREE = 1000
"""Degrees of freedom from which on the expansion of Student's quantile is exact to rounding."""
ROUNDING = 1e-6
"""Share of its size by which a number may be off, as means of float32 are (one alone by 6e-8)."""

Array = NDArray[np.float64]
Clusters = Sequence[Any] | NDArray[Any]


class Estimate(NamedTuple):
    """A number with its interval, of 95 % unless said, and the count of independent units."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}], n={self.n}"

    def to_json(self) -> dict[str, float | int | None]:
        """JSON has no infinity: an open or unknown end is `null`."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: x if math.isfinite(x) else None for name, x in ends.items()} | {"n": self.n}


UNKNOWN = Estimate(math.nan, -math.inf, math.inf, 0)
"""What is said when there is nothing to average."""


def cluster_mean(
    values: ArrayLike,
    clusters: Clusters,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Estimate:
    """Mean of `values` that cannot leave `bounds`, with an interval clustered by `clusters`.

    Every value weighs the same. One cluster says nothing about the spread between clusters, so its
    interval is infinite. Constant values keep an interval of about 1/n of the range to either side
    (4/n inwards from a bound): not to have seen anything else does not mean that there is none.
    """
    low, high = bounds
    unit = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    if unit.size == 0:
        return UNKNOWN
    _require_bounded(unit, bounds)
    mean, variance, n = _mean_and_variance(unit, clusters)
    value = low + (high - low) * mean
    if n < 2:
        return Estimate(value, -math.inf, math.inf, n)
    bottom, top = _wilson(mean, variance, n)
    return Estimate(value, low + (high - low) * bottom, low + (high - low) * top, n)


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    clusters: Clusters,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Estimate:
    """Mean of `b - a` over matched plays whose values lie in `bounds`, clustered like a mean."""
    before, after = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if before.shape != after.shape:
        raise ValueError(f"paired values must match: {before.shape} and {after.shape}")
    width = bounds[1] - bounds[0]
    return cluster_mean(after - before, clusters, bounds=(-width, width))


def pass_at_k(correct_P: ArrayLike, n: int, k: int) -> Estimate:
    """Chance that at least one of `k` plays is right, from `n` plays a problem of which c were.

    Per problem this is 1 - C(n-c, k) / C(n, k), which is unbiased; 1 - (1 - c/n)^k is not. The
    interval is over problems.
    """
    counts = np.asarray(correct_P, dtype=np.int64)
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} rollouts a problem has, got {k}")
    if counts.size and (counts.min() < 0 or counts.max() > n):
        raise ValueError(f"counts of right rollouts must lie between 0 and {n}")
    # Integers first: the binomials of large n overflow a float although their ratio does not.
    ways = math.comb(n, k)
    chance_by_count = np.array([1.0 - math.comb(n - c, k) / ways for c in range(n + 1)])
    return cluster_mean(chance_by_count[counts], np.arange(counts.size))


def _require_bounded(unit: Array, bounds: tuple[float, float]) -> None:
    # Rounding may carry a weighted mean of ones to 1 + 1e-16.
    if not np.all((unit >= -1e-9) & (unit <= 1 + 1e-9)):
        raise ValueError(f"values must lie between {bounds[0]} and {bounds[1]}")


def _mean_and_variance(unit: Array, clusters: Clusters) -> tuple[float, float, int]:
    """Mean of all values, variance of that mean between clusters, and the number of clusters."""
    names, index = np.unique(np.asarray(clusters), return_inverse=True)
    if index.shape != unit.shape:
        raise ValueError(f"one cluster per value is needed: {index.shape} and {unit.shape}")
    sums = np.bincount(index, weights=unit)
    sizes = np.bincount(index)
    n = len(names)
    mean = float(np.clip(unit.mean(), 0.0, 1.0))
    # The mean is a ratio of two sums over clusters; this is its linearised variance.
    spread = float(np.sum((sums - mean * sizes) ** 2))
    return mean, spread * n / max(n - 1, 1) / unit.size**2, n


def _wilson(mean: float, variance: float, n: int) -> tuple[float, float]:
    """Wilson score interval of a mean in [0, 1] whose variance was measured over `n` clusters."""
    widest = mean * (1 - mean)
    per_cluster = (n * (n * variance) + UNSEEN * widest) / (n + UNSEEN)
    effective = n * widest / per_cluster if per_cluster > 0 else float(n)
    score = t_score(n - 1, LEVEL) ** 2
    centre = (mean + score / (2 * effective)) / (1 + score / effective)
    root = math.sqrt(score * widest / effective + score**2 / (4 * effective**2))
    half = root / (1 + score / effective)
    # Rounding must not push the mean itself out of its interval.
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def difference_of_means(before: ArrayLike, after: ArrayLike, *, unseen: float = 0.0) -> Estimate:
    """Mean of `after` minus mean of `before`, unpaired, with Welch's interval.

    Every value must be an independent unit (a problem, a group, a seed); `n` counts those of the
    smaller side. Sides that are both constant, up to rounding, say nothing about their spread.
    Where they differ, the spread of all values stands for what was never seen. Where they do not,
    one further value does, off by `unseen`; the interval is infinite if that is not known.
    """
    a, b = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    n = min(a.size, b.size)
    if n == 0:
        return UNKNOWN
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(b.mean() - a.mean())
        half = _half_width(a, b, unseen) if n > 1 else math.inf
    if not math.isfinite(value) or not math.isfinite(half):
        return Estimate(value, -math.inf, math.inf, n)
    return Estimate(value, value - half, value + half, n)


def rounding_of(values: Array) -> float:
    """By how much numbers of this size may differ, though they are the same but for rounding."""
    return ROUNDING * float(np.abs(values).max(initial=0.0))


def is_constant(values: Array) -> bool:
    """Whether these are one number, but for rounding."""
    return bool(len(values)) and float(np.ptp(values)) <= rounding_of(values)


def _half_width(a: Array, b: Array, unseen: float) -> float:
    parts = float(a.var(ddof=1) / a.size), float(b.var(ddof=1) / b.size)
    error = math.sqrt(sum(parts))
    if not math.isfinite(error):
        return math.inf
    rounding = max(rounding_of(a), rounding_of(b))
    seen = max(float(a.std()), float(b.std()))
    missing = max(0.0, 1 - seen / rounding) if rounding else 1.0
    half = t_score(_welch_freedom(parts, (a.size, b.size)), LEVEL) * error if error else 0.0
    if not missing:
        return half
    both = np.concatenate([a, b])
    apart = max(float(both.std(ddof=1)), unseen / math.sqrt(both.size + 1))
    if apart <= rounding:
        return math.inf
    never_seen = apart * math.sqrt(1 / a.size + 1 / b.size)
    return half + missing * t_score(both.size - 2, LEVEL) * never_seen


def _welch_freedom(parts: tuple[float, float], sizes: tuple[int, int]) -> float:
    # In shares of the whole: the squares of small variances are 0.
    shares = [part / sum(parts) for part in parts]
    return 1 / sum(share**2 / (n - 1) for share, n in zip(shares, sizes, strict=True))


def mean_of_units(
    values: Sequence[float], *, level: float = LEVEL, unseen: float = 0.0
) -> Estimate:
    """Mean of a few independent units, such as seeds, with Student's interval of that coverage."""
    n = len(values)
    if n == 0:
        return UNKNOWN
    if not all(map(math.isfinite, values)):
        return Estimate(math.nan, -math.inf, math.inf, n)
    value = _mean(values)
    if n < 2:
        return Estimate(value, -math.inf, math.inf, n)
    half = t_score(n - 1, level) * spread_of_units(values, unseen=unseen) / math.sqrt(n)
    return Estimate(value, value - half, value + half, n)


def spread_of_units(values: Sequence[float], *, unseen: float = 0.0) -> float:
    """Standard deviation between at least two units, which a coincidence cannot make 0.

    Values that are equal up to rounding are what a coarse outcome gives, not knowledge of the
    spread: one further value stands for what was never seen, off by `unseen`, or by as much as the
    values themselves if that is more. It counts the less the more the values differ, so that there
    is no cliff. Zeros of which nothing is known are off by rounding.
    """
    n, spread = len(values), deviation(values)
    off = max(unseen, *map(abs, values))
    off = off if ROUNDING * off > 0 else ROUNDING
    return spread + max(0.0, 1 - spread / (ROUNDING * off)) * off / math.sqrt(n + 1)


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of at least two values, as it is."""
    mean = _mean(values)
    # hypot, because the square of a large number overflows and that of a small one is 0.
    return math.hypot(*(x - mean for x in values)) / math.sqrt(len(values) - 1)


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum, not the mean
        return math.fsum(x / len(values) for x in values)


@lru_cache(maxsize=4096)
def t_score(freedom: float, level: float) -> float:
    """How many standard errors Student's two-sided interval of coverage `level` reaches to each
    side."""
    freedom, level = float(freedom), float(level)  # numpy's would be kept for whoever asks next
    score = _expanded_t(freedom, NormalDist().inv_cdf((1 + level) / 2))
    if freedom >= MANY_FREE:
        return score
    # Where few are free the expansion is only a start; Newton's steps in log(t) cannot leave t > 0.
    for _ in range(60):
        step = (students(score, freedom) - (1 - level)) / students_slope(score, freedom)
        score *= math.exp(max(-1.0, min(1.0, step / score)))
        if abs(step) < 1e-10 * score:  # the step after it is below rounding
            break
    return score


def _expanded_t(freedom: float, z: float) -> float:
    """Student's quantile from the normal one, by powers of 1 / freedom (Abramowitz-Stegun 26.7.5).

    The next term is below 1e-13 of the score at 1000 degrees of freedom.
    """
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


@lru_cache(maxsize=256)
def sequential_level(looks: tuple[int, ...], alpha: float) -> float:
    """Error level for each of several looks at a growing mean, so that all of them keep `alpha`.

    Pocock's rule for Student's t: the same level at every look, namely the `alpha` quantile of the
    least p-value of all looks where there is no effect and the noise is normal. It is simulated
    with a fixed seed; an alpha too small for that many draws gets Bonferroni's `alpha / looks`.
    """
    if len(looks) == 1:
        return alpha
    bonferroni = alpha / len(looks)
    if alpha * DRAWS < 100:
        return bonferroni
    return float(np.clip(np.quantile(_least_p_values(looks), alpha), bonferroni, alpha))


@lru_cache(maxsize=4)
def _least_p_values(looks: tuple[int, ...]) -> Array:
    """The least two-sided p-value over the looks of each simulated experiment without an effect."""
    rng = np.random.default_rng(0)
    total, squares = np.zeros(DRAWS), np.zeros(DRAWS)
    least = np.ones(DRAWS)
    for n in range(1, looks[-1] + 1):
        drawn = rng.standard_normal(DRAWS)
        total += drawn
        squares += drawn**2
        if n in looks:
            error = np.sqrt((squares - total**2 / n) / (n - 1) / n)
            np.minimum(least, p_values(np.abs(total / n) / error, n - 1), out=least)
    return least


def p_values(t: Array, freedom: int) -> Array:
    """Chance of more than t on both sides, for a whole number of degrees of freedom.

    The finite sums of Abramowitz-Stegun 26.7.3 and 26.7.4; right to 1e-15, not to 1e-15 of itself.
    """
    angle = np.arctan(t / math.sqrt(freedom))
    cosine = np.cos(angle)
    inside, term = np.zeros_like(angle), cosine ** (freedom % 2)
    for power in range(freedom % 2, freedom - 1, 2):
        inside += term
        term = term * cosine**2 * (power + 1) / (power + 2)
    inside *= np.sin(angle)
    return np.asarray(1 - (2 / np.pi * (angle + inside) if freedom % 2 else inside))
