"""Does the sampler sample with the weights that were trained?

Where it does, the log-prob that it gave a token when it drew it is the policy's own of that token,
before any step and after it.
"""

from typing import NamedTuple

from torch import Tensor


class Apart(NamedTuple):
    """Two sets of log-probs of the same tokens, in nats."""

    mean: float
    worst: float
    at: int
    """Which token is the worst."""


def apart(found_T: Tensor, expected_T: Tensor) -> Apart:
    """How far they differ; 0 where there are none."""
    off_T = (found_T.detach().double().cpu() - expected_T.detach().double().cpu()).abs()
    if not off_T.numel():
        return Apart(0.0, 0.0, -1)
    return Apart(float(off_T.mean()), float(off_T.max()), int(off_T.argmax()))
