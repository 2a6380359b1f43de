"""Counts with their intervals."""

from typing import Any

from scipy.special import betaincinv

from flatline.stats import LEVEL


def exact_share(count: int, total: int) -> dict[str, Any]:
    """A count of independent runs with its exact (Clopper-Pearson) 95 % interval."""
    tail = (1 - LEVEL) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return {"count": count, "of": total, "low": low, "high": high}
