"""A quantised sampler is sent what changed, adds it to its own weights and quantises them again.

Before training its weights are as near the trainer's as their digits allow. What a step changes by
less than half of the last digit is then lost, again at each delivery, so that the sampler is left
behind a little more with every step while each delivery looks complete. Weights that are quantised
again from the trainer's own have a gap that stays (miles pull request 1678: flat, 0.27 nat in FP8);
one that grows was seen in Precision-RL issue 10 and open-instruct issue 1473.

Strength: bits of a quantised weight, with a scale for every row; at 16 hardly anything is lost.
Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from flatline.faults.base import Fault
from flatline.faults.sampler import policy, while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.weights import WeightCopy


class SamplerRequantised(Fault):
    name: ClassVar[str] = "sampler-requantised"
    hypothesis: ClassVar[str] = "H63"
    default: ClassVar[float] = 8
    bounds: ClassVar[tuple[float, float]] = (2, 16)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        sent, sampler = (WeightCopy(policy(trainer)) for _ in range(2))
        with torch.no_grad():
            for played in sampler.model.parameters():
                played.copy_(_quantised(played, strength))

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            before = [weight.clone() for weight in sent.model.parameters()]
            sent.deliver(policy(trainer))
            weights = zip(sampler.model.parameters(), sent.model.parameters(), before, strict=True)
            with torch.no_grad():
                for played, now, then in weights:
                    if not torch.equal(now, then):  # what did not change is not sent
                        played.copy_(_quantised(played + (now - then), strength))
            sampler.version = trainer.state.global_step
            with swapped(engine, _weights=sampler):
                yield

        while_sampling(trainer, self.name, change)


def _quantised(weight: Tensor, bits: float) -> Tensor:
    """The nearest numbers of a grid that reaches as far as the largest element of each row."""
    most = 2.0 ** (int(bits) - 1) - 1
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    return (weight / scale).round() * scale
