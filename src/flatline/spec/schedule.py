"""The rate in force at a step.

At step k (from 0) of n, w of them warm-up, it is the rate asked for times

    constant                1
    constant_with_warmup    min(1, k / w)
    linear                  k / w, then (n - k) / (n - w)
    cosine                  k / w, then (1 + cos(pi (k - w) / (n - w))) / 2

A schedule of the user's own may have any shape, but not end before half of the training is over.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from flatline.spec.asked import Asked, NotSpecified

RATE = 1e-4
"""Of a rate, relative to the one asked for."""
ENDED = 0.01
"""Share of the rate asked for below which nothing is learned any more."""
GIVEN = "given"
"""The schedule of a user who made it rather than asked for it."""


FACTOR_NOT_RATE = (
    "A scheduler multiplies the optimizer's rate: let the function of a `LambdaLR` return a "
    "factor, 1 for the whole rate, and not a rate."
)
"""What to do where the rate in force is hardly anything from the first step to the last."""


class OtherRate(NamedTuple):
    """The first step at which another rate is in force."""

    step: int
    """Counted from 0."""
    found: float
    wanted: float


def rate(asked: Asked, step: int) -> float:
    """In force at this step, counted from 0."""
    return asked.learning_rate * _multiple(asked, step)


def other_rate(asked: Asked, steps: Sequence[int], found: Sequence[float]) -> OtherRate | None:
    """None where the rate of every step is the one asked for. What is as good as 0 may differ."""
    if asked.schedule == GIVEN:
        return _ended(asked, steps, found)
    for step, seen in zip(steps, found, strict=True):
        wanted = rate(asked, step)
        wrong = abs(seen - wanted) > RATE * asked.learning_rate
        if wrong and max(wanted, seen) > ENDED * asked.learning_rate:
            return OtherRate(step, seen, wanted)
    return None


def never_begins(found: Sequence[float], wanted: float) -> bool:
    """Whether a schedule leaves hardly anything of the rate at every step."""
    return max(found) < ENDED * wanted


def _ended(asked: Asked, steps: Sequence[int], found: Sequence[float]) -> OtherRate | None:
    """Where the rate is as good as 0 from a step of the first half to the end of what is known."""
    least = ENDED * asked.learning_rate
    alive = [step for step, seen in zip(steps, found, strict=True) if seen >= least]
    dead = [step for step in steps if not alive or step > alive[-1]]
    half = asked.steps / 2
    if len(dead) < 2 or dead[0] >= half or dead[-1] < half:
        return None
    return OtherRate(dead[0], found[list(steps).index(dead[0])], asked.learning_rate)


def _multiple(asked: Asked, step: int) -> float:
    if asked.schedule == "constant":
        return 1.0
    if asked.schedule not in ("constant_with_warmup", "linear", "cosine"):
        raise NotSpecified(f"the schedule {asked.schedule!r}")
    if step < asked.warmup:
        return step / max(1, asked.warmup)
    if asked.schedule == "constant_with_warmup":
        return 1.0
    done = (step - asked.warmup) / max(1, asked.steps - asked.warmup)
    return max(0.0, 1 - done if asked.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
