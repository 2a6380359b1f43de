"""The learning rate is far too high: the policy is destroyed within a few steps.

Not from a report: a rate for LoRA is used on every weight, or a zero is forgotten.

Strength: the learning rate is multiplied by this.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault


class LearningRateHigh(Fault):
    name: ClassVar[str] = "learning-rate-high"
    hypothesis: ClassVar[str] = "H24"
    default: ClassVar[float] = 30
    bounds: ClassVar[tuple[float, float]] = (1, 1e9)
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, learning_rate=config.rate * strength)
