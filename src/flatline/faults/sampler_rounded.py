"""The sampler computes with weights of fewer digits than the trainer.

Seen wherever rollouts are sampled in FP8 or bf16 and trained in more (arXiv 2510.26788; "When
Speed Kills Stability"): sampler and trainer then are two policies from the first step on.

Strength: bits behind the leading one that the sampler's weights keep; bf16 has 7, FP8 2 or 3.
Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from flatline.faults.base import Fault
from flatline.faults.rounding import rounded
from flatline.faults.sampler import policy, while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.weights import WeightCopy


class SamplerRounded(Fault):
    name: ClassVar[str] = "sampler-rounded"
    hypothesis: ClassVar[str] = "H20"
    default: ClassVar[float] = 1
    bounds: ClassVar[tuple[float, float]] = (0, 23)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        sampler = WeightCopy(policy(trainer))

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            sampler.deliver(policy(trainer))
            with torch.no_grad():
                for weight in sampler.model.parameters():
                    weight.copy_(rounded(weight, strength))
            sampler.version = trainer.state.global_step
            with swapped(engine, _weights=sampler):
                yield

        while_sampling(trainer, self.name, change)
