"""Each delivery merges the adapter into weights that already hold it.

The sampler's weights are W + BA after the first step, W + BA + B'A' after the second, and so on:
it runs away from the trainer. Seen in a mild form in TRL (issue 6688): merging and unmerging in
bf16 leaves a part of the adapter behind each time.

Strength: how much of the adapter each delivery adds again. Needs LoRA and flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from flatline.errors import ConfigError
from flatline.faults.adapter_frozen import needs_lora
from flatline.faults.base import Fault
from flatline.faults.sampler import policy, while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.weights import WeightCopy


class AdapterMergedTwice(Fault):
    name: ClassVar[str] = "adapter-merged-twice"
    hypothesis: ClassVar[str] = "H06"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        if not hasattr(policy(trainer), "peft_config"):
            raise ConfigError(needs_lora(self.name))
        base, merged, sampler = (WeightCopy(policy(trainer)) for _ in range(3))
        extra = [torch.zeros_like(weight) for weight in sampler.model.parameters()]

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            merged.deliver(policy(trainer))
            with torch.no_grad():
                tensors = (copy.model.parameters() for copy in (base, merged, sampler))
                for w0, w1, played, more in zip(*tensors, extra, strict=True):
                    played.copy_(w1 + more)
                    more.add_(strength * (w1 - w0))
            sampler.version = trainer.state.global_step
            with swapped(engine, _weights=sampler):
                yield

        while_sampling(trainer, self.name, change)
