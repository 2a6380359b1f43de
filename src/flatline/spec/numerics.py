"""How far two right answers may be apart, by the arithmetic they were computed in.

A number with b bits behind the point is rounded by at most 2^-(b+1) of itself: fp32 has 23 bits,
TF32 and fp16 10, bf16 7. A trainer scores rows padded and in batches, the specification one by one,
so every product is summed in another order; through the layers of a model the roundings of a
log-prob add up to a few dozen single ones of the largest logit, those of a gradient average out.
The limits below lie several times above what healthy trainers show (docs/specification.md has the
table), and so far from 1 that a wrong sign, a missing term or another denominator is beyond them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits for one precision."""

    logprob: float
    """Mean difference of a log-prob, nats."""
    logprob_worst: float
    """Largest difference of one."""
    weight: float
    """Of a token's weight in the loss, relative to the largest of the pass."""
    loss: float
    """Of a pass's loss, relative to the sum of its absolute token losses."""
    cosine: float
    """1 minus the cosine of two gradients."""
    length: float
    """Of their lengths, relative."""
    moved: float
    """Of a sampler's log-prob after the weights were moved, relative to what the move did."""
    update: float
    """Of a step's change of the weights, relative to its length."""


TOLERANCE = {
    "fp32": Tolerance(1e-4, 5e-3, 1e-4, 1e-4, 1e-5, 1e-3, 1e-3, 1e-3),
    "tf32": Tolerance(5e-3, 1e-1, 1e-2, 1e-2, 1e-4, 5e-3, 2e-2, 5e-3),
    "fp16": Tolerance(1e-2, 3e-1, 2e-2, 2e-2, 1e-2, 5e-2, 5e-2, 2e-2),
    "bf16": Tolerance(5e-2, 1.5, 5e-2, 5e-2, 2e-2, 1e-1, 2e-1, 3e-2),
}
"""By precision of the products."""

ADVANTAGE = 1e-3
"""Of an advantage, relative to 1 plus its size. Rewards are summed and normalised in fp32 at every
precision, and a spread of nearly 0 is the worst of it."""
ADVANTAGE_HERE = 1e-5
"""The same in a trainer at hand, whose rewards are known as they are and whose smallest
denominator is too."""
ADVANTAGE_PENALISED = 1e-4
"""The same where the KL of every token of a row was taken off its reward."""
PAID = 1e-5
"""Of a reward, relative to 1 plus its size: it is handed on in float32 and no sum is taken."""
