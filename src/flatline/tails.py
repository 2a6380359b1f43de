"""Chances beyond a value, by one function: the incomplete beta function.

Student's, the binomial and the beta distribution, right to nine digits. scipy has them too; it
would be the dearest package of all, and takes as long to load as a log takes to diagnose.
"""

import math


def students(t: float, freedom: float) -> float:
    """Chance of more than t on both sides."""
    beyond, within = _parts(t, freedom)
    return beta_below(beyond, freedom / 2, 0.5, rest=within)


def students_slope(t: float, freedom: float) -> float:
    """How fast that falls with t."""
    beyond, within = _parts(t, freedom)
    return 2 * _height(beyond, freedom / 2, 0.5, within) / t


def _parts(t: float, freedom: float) -> tuple[float, float]:
    """Of `freedom + t * t`, each as a share; none is lost where the other is nearly all."""
    return freedom / (freedom + t * t), t * t / (freedom + t * t) if math.isfinite(t * t) else 1.0


def binomial(count: int, total: int, rate: float) -> float:
    """Chance of at least so many of all, each of which happens at that rate."""
    if count <= 0:
        return 1.0
    return beta_below(rate, count, total - count + 1) if count <= total else 0.0


def beta_quantile(share: float, a: float, b: float) -> float:
    """Below which so large a share of the beta distribution lies; halved down to the last bit."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if beta_below(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return high


def beta_below(x: float, a: float, b: float, *, rest: float | None = None) -> float:
    """Share of the beta distribution that lies below x; `rest` is 1 - x where that is known better
    than x says it."""
    rest = 1 - x if rest is None else rest
    if not (x > 0 and rest > 0):
        return float(x)
    whole = _height(x, a, b, rest)
    if x < (a + 1) / (a + b + 2):
        return whole * _fraction(x, a, b) / a
    return 1 - whole * _fraction(rest, b, a) / b


def _height(x: float, a: float, b: float, rest: float) -> float:
    """The density of the beta distribution at x, times x (1 - x)."""
    size = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(size + a * math.log(x) + b * math.log(rest))


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for factor in (even, odd):
            d, c = 1 / (1 + factor * d), 1 + factor / c
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found
