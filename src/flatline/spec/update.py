"""What one step does to a weight, and at which rate.

AdamW (Loshchilov and Hutter, 2019, algorithm 2), g the clipped gradient, t counted from 1:

    w  <- w - rate * decay * w
    m  <- b1 m + (1 - b1) g          v  <- b2 v + (1 - b2) g^2
    w  <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

The rate in force at step k (from 0) of n, w of them warm-up, is the rate asked for times

    constant                1
    constant_with_warmup    min(1, k / w)
    linear                  k / w, then (n - k) / (n - w)
    cosine                  k / w, then (1 + cos(pi (k - w) / (n - w))) / 2
"""

import math
import re

import torch
from torch import Tensor

from flatline.spec.asked import Asked, NotSpecified

_NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.I)
"""Names of weights that transformers never decays."""


def rate(asked: Asked, step: int) -> float:
    """In force at this step, counted from 0."""
    return asked.learning_rate * _multiple(asked, step)


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
