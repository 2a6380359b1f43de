"""The sampler's temperature is not the one that the trainer divides its logits by.

Log-probs are then those of another distribution. Seen where a server takes unset values from the
model's `generation_config.json` (vLLM pull request 15281, TRL issue 4159).

Strength: the sampler's temperature.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import change_sampling
from flatline.live.trl.grpo import GrpoTrainer


class SamplerTemperature(Fault):
    name: ClassVar[str] = "sampler-temperature"
    hypothesis: ClassVar[str] = "H21"
    default: ClassVar[float] = 1.7
    bounds: ClassVar[tuple[float, float]] = (0, 100)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        change_sampling(
            trainer, self.name, lambda sampling: replace(sampling, temperature=strength)
        )
