"""Gradients are shortened so much that Adam's epsilon is larger than they are.

Adam divides a gradient by its own size plus epsilon, so shortening all of them alike does little
until epsilon wins. Seen in verifiers, whose `grpo_defaults` set `max_grad_norm=0.01`, which is near
that point for models of many weights.

Strength: the norm that gradients are shortened to.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault


class GradientClipLow(Fault):
    name: ClassVar[str] = "gradient-clip-low"
    hypothesis: ClassVar[str] = "H27"
    default: ClassVar[float] = 1e-8
    bounds: ClassVar[tuple[float, float]] = (1e-30, 1e6)
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, max_grad_norm=strength)
