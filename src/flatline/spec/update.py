"""What one step does to a weight.

AdamW (Loshchilov and Hutter, 2019, algorithm 2), g the clipped gradient, t counted from 1:

    w  <- w - rate * decay * w
    m  <- b1 m + (1 - b1) g          v  <- b2 v + (1 - b2) g^2
    w  <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
"""

import re

import torch
from torch import Tensor

from flatline.spec.asked import Asked, NotSpecified

_NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.I)
"""Names of weights that transformers never decays."""


def decay_of(asked: Asked, name: str) -> float:
    """Biases and norms are not decayed."""
    return 0.0 if _NOT_DECAYED.search(name) else asked.decay


def adamw(
    asked: Asked,
    weight: Tensor,
    gradient: Tensor,
    *,
    rate: float,
    decay: float,
    step: int = 1,
    mean: Tensor | None = None,
    square: Tensor | None = None,
) -> Tensor:
    """The weight after the step, in double precision. `mean` and `square` are those before it."""
    if asked.optimizer != "adamw":
        raise NotSpecified(f"the optimizer {asked.optimizer!r}")
    first, second = asked.betas
    w, g = weight.detach().double(), gradient.detach().double()
    m = (1 - first) * g if mean is None else first * mean.double() + (1 - first) * g
    v = second * square.double() if square is not None else torch.zeros_like(g)
    v = v + (1 - second) * g.square()
    direction = (m / (1 - first**step)) / ((v / (1 - second**step)).sqrt() + asked.epsilon)
    return w * (1 - rate * decay) - rate * direction
