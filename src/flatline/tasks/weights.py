"""Reward weights a user may change."""

from collections.abc import Mapping
from math import isfinite

from flatline.errors import ConfigError
from flatline.tasks.base import Weights


def merged_weights(defaults: Mapping[str, float], given: Mapping[str, float] | None) -> Weights:
    """The given weights over the defaults; a part that does not exist is an error, not ignored."""
    unknown = sorted(set(given or {}) - set(defaults))
    if unknown:
        raise ConfigError(
            f"There is no reward part {', '.join(unknown)}.\nThis task has {', '.join(defaults)}."
        )
    merged = {**defaults, **(given or {})}
    if not all(isfinite(w) and w >= 0 for w in merged.values()) or not sum(merged.values()):
        raise ConfigError(
            f"The weights {merged} cannot be used.\n"
            "Each must be 0 or more, and at least one more than 0."
        )
    return Weights(merged)
