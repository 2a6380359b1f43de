"""Before the first run: what a rule can detect. Simulated with a fixed seed, for normal noise."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatline.errors import ConfigError
from flatline.stats import Array
from flatline.verdict.criterion import LARGEST, LEAST_NOISE, Rule, half_width

DRAWS = 20_000
"""Simulated investigations behind a power: it is met to 0.007 (two sigma)."""
QUIET = 4
"""Times the least noise: of three seeds this loud, 6 % lie closer together than the least noise."""
BEYOND = 1e6
"""Times the smallest effect: what is not found there is never found."""


def power(rule: Rule, *, effect: float, sd: float) -> float:
    """Chance that a true `effect` is validated, for a mechanism that flips.

    `sd` is the standard deviation of the difference between matched seeds.
    """
    _require_numbers(effect, sd)
    return _chance(rule, effect, sd)


@lru_cache(maxsize=256)
def detectable(rule: Rule, *, sd: float, power: float = 0.8) -> float:
    """The least true effect that is validated with that chance, to 1 % of `smallest_effect`.

    Infinite for a plan that validates nothing, having fewer seeds than its family needs.
    """
    _require_numbers(0.0, sd)
    if not 0 < power < 1:
        raise ConfigError(
            f"The power asked for is {power}, but no plan detects always or never: it lies "
            "between 0 and 1.\nThe usual power is 0.8."
        )
    low, high = 0.0, rule.smallest_effect
    while _chance(rule, high, sd) < power:
        low, high = high, 2 * high
        if high > BEYOND * rule.smallest_effect:
            return math.inf
    while high - low > rule.smallest_effect / 100:
        middle = (low + high) / 2
        low, high = (low, middle) if _chance(rule, middle, sd) >= power else (middle, high)
    return high


def _chance(rule: Rule, effect: float, sd: float) -> float:
    # Seeds as quiet as those that count as one are not to be planned with.
    sd = max(sd, QUIET * LEAST_NOISE * rule.smallest_effect)
    return float(ends_of(effect + sd * _noise(rule.looks[-1]), rule).validated.mean())


@lru_cache(maxsize=8)
def _noise(seeds: int) -> Array:
    return np.random.default_rng(0).standard_normal((DRAWS, seeds))


class Ends(NamedTuple):
    """How many investigations end, each settled by its outcome."""

    validated: NDArray[np.bool_]
    """The outcome certainly rose, by enough to matter."""
    excluded: NDArray[np.bool_]
    """An effect that matters was excluded."""
    seeds: NDArray[np.int64]
    """How many were used."""


def ends_of(differences: Array, rule: Rule) -> Ends:
    """How investigations end, one a row of differences, for a mechanism that flips.

    `decide` for many at once; a test holds the two together.
    """
    running = np.ones(len(differences), dtype=bool)
    validated, excluded = np.zeros_like(running), np.zeros_like(running)
    seeds = np.zeros(len(differences), dtype=np.int64)
    for look in rule.looks:
        seeds[running] = look
        if look < rule.fewest:
            continue
        seen = differences[:, :look]
        mean = seen.mean(axis=1)
        half = half_width(seen.std(axis=1, ddof=1), mean, look, rule)
        moved = running & (mean - half > 0) & (mean >= rule.smallest_effect)
        ruled_out = running & ~moved & (mean + half < rule.smallest_effect)
        validated |= moved
        excluded |= ruled_out
        running &= ~moved & ~ruled_out
    return Ends(validated, excluded, seeds)


def _require_numbers(effect: float, sd: float) -> None:
    if not (abs(effect) <= LARGEST and 1 / LARGEST <= sd <= LARGEST):
        raise ConfigError(
            f"The effect is {effect} and its standard deviation between seeds {sd}: what a plan "
            "can detect follows from two numbers to reckon with, the second above 0.\n"
            "Without runs to take the spread from, 0.03 is usual for a held-out reward."
        )
