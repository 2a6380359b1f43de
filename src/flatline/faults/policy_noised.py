"""The starting policy cannot do the task: its weights have been disturbed before training.

Stands for a base model that is too small, of another kind, or was converted wrongly. Seen in many
threads that end with "it works with the instruct model".

Strength: standard deviation of the noise on each weight matrix, as a share of its own.
"""

from typing import Any, ClassVar

import torch

from flatline.faults.base import Fault
from flatline.live.trl.grpo import GrpoTrainer


class PolicyNoised(Fault):
    name: ClassVar[str] = "policy-noised"
    hypothesis: ClassVar[str] = "H45"
    default: ClassVar[float] = 0.5
    bounds: ClassVar[tuple[float, float]] = (0, 100)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        # The reference is the starting policy: it gets the same noise.
        for model in (trainer.model, trainer.ref_model):
            if model is not None:
                _disturb(model, strength)


@torch.no_grad()
def _disturb(model: Any, strength: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if weight.ndim >= 2 and "lora_" not in name:
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise.to(weight) * strength * weight.std())
