"""The learning rate is far too low: nothing is wrong, and nothing moves.

Seen where the rate of full fine-tuning is copied to LoRA, which wants ten times as much (TRL issue
2872: 5e-7).

Strength: the learning rate is divided by this.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault


class LearningRateLow(Fault):
    name: ClassVar[str] = "learning-rate-low"
    hypothesis: ClassVar[str] = "H24"
    default: ClassVar[float] = 100
    bounds: ClassVar[tuple[float, float]] = (1, 1e9)
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, learning_rate=config.rate / strength)
