"""Steps that multiply all weights by one number: no gradient asks for that.

A decay takes the rate times a number of at most a few from every weight. What takes a hundredth of
all of them at every step, along the weights themselves, has left the rate out.
"""

from dataclasses import dataclass

import numpy as np

SIZEABLE = 0.01
"""Share of the weights that a step must take away or add."""
BEYOND = 10.0
"""The same in units of the rate: a decay of so much is asked for by nobody."""
ALONG = 0.8
"""Share of a weight's change that lies along the weight itself. A gradient's: near 0 in many
dimensions."""
ALIKE = 0.1
"""Difference of factors, in units of their distance from 1."""
MOST, HALF = 0.9, 0.5
"""Share of the elements, and of the tensors, that must have one factor: biases and norms may be
left out of a decay."""
FEWEST = 4
"""Tensors that are needed to call a factor common."""
WITHOUT_RATE = (
    "Look for a weight decay that is not multiplied by the learning rate: "
    "`p.mul_(1 - lr * weight_decay)`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What one step did to each tensor, along the tensor itself."""

    factor: np.ndarray
    """By which it was multiplied; NaN where it was 0."""
    along: np.ndarray
    """Share of the change that this is."""
    size: np.ndarray
    """Elements."""

    @classmethod
    def of_norms(
        cls, before: np.ndarray, after: np.ndarray, moved: np.ndarray, size: np.ndarray
    ) -> "Scaling":
        """From norms alone: a change across a tensor hardly changes its norm."""
        there = (before > 0) & (moved > 0)
        factor = np.where(there, after / np.where(there, before, 1.0), np.nan)
        along = np.where(there, np.abs(after - before) / np.where(there, moved, 1.0), 0.0)
        return cls(factor=factor, along=along, size=size)


def common_factor(step: Scaling, rate: float) -> float | None:
    """The number that a step multiplies nearly all weights by; None where there is none."""
    known = np.isfinite(step.factor)
    if known.sum() < FEWEST:
        return None
    factor = float(np.median(step.factor[known]))
    if abs(factor - 1) < max(SIZEABLE, BEYOND * rate):
        return None
    alike = known & (step.along >= ALONG)
    alike &= np.abs(step.factor - factor) <= ALIKE * abs(factor - 1)
    most = step.size[alike].sum() >= MOST * step.size.sum() and alike.mean() >= HALF
    return factor if most else None


def every_step(factor: float) -> str:
    """In words, as the beginning of a sentence."""
    return (
        f"Each step multiplies all weights by {factor:.3g}, along the weights themselves, whatever "
        "the gradient is"
    )
