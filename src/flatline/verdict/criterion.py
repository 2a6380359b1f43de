"""The criterion of an experiment: what is looked at, when, and how often it may err.

The effect is the mean of one difference per matched seed. Its interval is as wide as looking at it
at every one of `looks` demands (`stats.sequential_level`), so whoever stops at the first look that
settles the question still errs in at most `alpha` of all investigations. That is for noise without
gaps; `Rule.fewest` seeds are what it takes where runs either learn or do not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np

from flatline.errors import ConfigError
from flatline.stats import (
    ROUNDING,
    UNKNOWN,
    Array,
    Estimate,
    deviation,
    sequential_level,
    t_score,
)

LARGEST = 1e100
"""Numbers beyond it, or below 1 / it, are no measurement: their squares leave the range."""
LEAST_NOISE = 0.1
"""Scatter of the differences, as a share of `smallest_effect`, below which no seeds lie together:
0.005 by default, where the quietest comparison on the lab has 0.011."""
MOST_SEEDS = 30
"""More further seeds than these are not proposed: another outcome or longer runs cost less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The criterion, registered before the first run."""

    smallest_effect: float = 0.05
    """The least difference in the outcome that matters."""
    looks: tuple[int, ...] = (3, 4, 5, 6)
    """Numbers of matched seeds at which the effect is looked at; the last is the most ever run."""
    alpha: float = 0.05
    """Two-sided error rate of all looks at all effects of the family together."""
    family: int = 1
    """Effects tested on one set of runs; each gets alpha / family."""

    def __post_init__(self) -> None:
        if not 1 / LARGEST <= self.smallest_effect <= LARGEST:
            raise ConfigError(
                f"smallest_effect is {self.smallest_effect}, but it must be above 0 and a number "
                "that can be reckoned with: without it no effect can be called too small to "
                "matter.\n"
                "Give the least gain you would act on, such as 0.05."
            )
        if not 0 < self.alpha < 1 or self.family < 1:
            raise ConfigError(
                f"alpha is {self.alpha} and family {self.family}: an error rate lies between 0 "
                "and 1, and a family has at least one effect.\nThe usual alpha is 0.05."
            )
        if not self.looks or self.looks[0] < 2 or any(a >= b for a, b in pairwise(self.looks)):
            raise ConfigError(
                f"looks are {self.looks}, but they must rise and begin at 2 or more: one seed "
                "says nothing about the spread between seeds.\nThe usual looks are (3, 4, 5, 6)."
            )

    @property
    def level(self) -> float:
        """Error level of one look at one effect; its interval covers 1 - level."""
        return sequential_level(self.looks, self.alpha / self.family)

    @property
    def fewest(self) -> int:
        """Matched seeds below which no effect has an interval, however close they lie together.

        Runs may fall into two groups by chance, such as those that learn and those that do not.
        Where the treatment does nothing, a treated run is then in the better group and its control
        in the worse with a chance of up to 1 / 4, and on all of n seeds with up to 1 / 4**n.
        Student's interval does not know of groups: it takes that for an effect without noise.
        """
        return next(n for n in count(1) if 4.0**-n * self.family <= self.alpha)

    @property
    def fewest_in_words(self) -> str:
        """That many, and why: a clause."""
        return f"{self.fewest} are the fewest that can carry {self.effects_in_words}"

    @property
    def effects_in_words(self) -> str:
        """How many effects share the error rate."""
        return "an effect" if self.family == 1 else f"{self.family} tested effects"

    def refuse(self, differences: Sequence[float]) -> None:
        """Raises what is wrong with differences that no verdict can be based on."""
        for number, difference in enumerate(differences, start=1):
            if not math.isfinite(difference):
                raise ConfigError(
                    f"The difference of matched seed number {number} is {difference}: one of its "
                    "two runs has no outcome, so there is no effect to compute.\n"
                    "Look at the logs of that seed's runs, then run the same command again."
                )
            if abs(difference) > LARGEST:
                raise ConfigError(
                    f"The difference of matched seed number {number} is {difference:g}: no reward "
                    "or metric is that large, and its square overflows.\n"
                    "Look at what that seed's runs logged as the outcome; a loss that diverged "
                    "is no outcome."
                )
        if len(differences) > self.looks[-1]:
            raise ConfigError(
                f"There are {len(differences)} matched seeds, but the plan ends at "
                f"{self.looks[-1]}: seeds added until an effect shows break the error rate.\n"
                "Register a new plan whose looks go that far."
            )


def effect_of(differences: Sequence[float], rule: Rule) -> Estimate:
    """Mean difference with the interval that holds at every look of the rule."""
    n = len(differences)
    if n == 0:
        return UNKNOWN
    mean = math.fsum(differences) / n
    if n < max(2, rule.fewest):
        return Estimate(mean, -math.inf, math.inf, n)
    half = float(half_width(np.array(deviation(differences)), np.array(mean), n, rule))
    return Estimate(mean, mean - half, mean + half, n)


def half_width(spread: Array, mean: Array, n: int, rule: Rule) -> Array:
    """How far the intervals of many effects over `n` seeds reach to each side.

    Student's, from the standard error that the spread gives. Differences that lie together closer
    than seeds do are not n measurements but one: the seeds changed nothing, or the outcome is too
    coarse to tell runs apart. So the closer they lie, the more of the effect itself is added to the
    error; of equal ones all of it, and then no number of seeds decides.
    """
    error = spread / math.sqrt(n) + alike(spread, mean, rule) * np.maximum(
        rule.smallest_effect, np.abs(mean)
    )
    return np.asarray(t_score(n - 1, 1 - rule.level) * error)


def alike(spread: Array, mean: Array, rule: Rule) -> Array:
    """1 for differences that are equal, 0 for those that scatter as seeds do."""
    least = np.maximum(LEAST_NOISE * rule.smallest_effect, ROUNDING * np.abs(mean))
    return np.maximum(0.0, 1 - spread / least)


def more_seeds(differences: Sequence[float], rule: Rule) -> int | None:
    """Further matched seeds that would decide if they came out like these; None: over MOST_SEEDS.

    Inside the plan only looks count. Before the first look: the seeds that are missing to it.
    """
    n = len(differences)
    if n < rule.looks[0]:
        return rule.looks[0] - n
    mean, spread = math.fsum(differences) / n, deviation(differences)
    room = mean if mean >= rule.smallest_effect else rule.smallest_effect - mean
    for seeds in range(max(n, rule.fewest), n + MOST_SEEDS + 1):
        looked_at = seeds in rule.looks or seeds > rule.looks[-1]
        if looked_at and half_width(np.array(spread), np.array(mean), seeds, rule) < room:
            return seeds - n
    return None
