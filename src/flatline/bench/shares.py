"""Counts with their intervals."""

from typing import Any

from flatline.stats import LEVEL
from flatline.tails import beta_quantile


def exact_share(count: int, total: int) -> dict[str, Any]:
    """A count of independent runs with its exact (Clopper-Pearson) 95 % interval."""
    tail = (1 - LEVEL) / 2
    low = beta_quantile(tail, count, total - count + 1) if count else 0.0
    high = beta_quantile(1 - tail, count + 1, total - count) if count < total else 1.0
    return {"count": count, "of": total, "low": low, "high": high}
