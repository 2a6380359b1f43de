"""The sampler draws from the likeliest tokens only, and the trainer does not know.

What could be explored is cut off, and log-probs are those of another distribution. Seen where a
server takes `top_k` from the model's `generation_config.json` (Qwen2.5: 20).

Strength: how many tokens are kept.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import change_sampling
from flatline.live.trl.grpo import GrpoTrainer


class SamplerTopK(Fault):
    name: ClassVar[str] = "sampler-top-k"
    hypothesis: ClassVar[str] = "H21"
    default: ClassVar[float] = 2
    bounds: ClassVar[tuple[float, float]] = (1, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        change_sampling(trainer, self.name, lambda sampling: replace(sampling, top_k=int(strength)))
