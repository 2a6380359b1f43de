"""The adapter is merged into weights of few digits: small changes of large weights are lost.

The trainer computes W + BA exactly, the sampler gets the nearest number that its type holds. Seen
where adapters are merged into bf16 weights at each delivery (TRL issues 5188 and 6688).

Strength: bits behind the leading one that a merged weight keeps; bf16 has 7, but the lab's rates
are so high that only fewer lose anything. Needs LoRA and flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from flatline.errors import ConfigError
from flatline.faults.adapter_frozen import needs_lora
from flatline.faults.base import Fault
from flatline.faults.rounding import rounded
from flatline.faults.sampler import policy, while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.weights import WeightCopy


class MergeRounded(Fault):
    name: ClassVar[str] = "merge-rounded"
    hypothesis: ClassVar[str] = "H18"
    default: ClassVar[float] = 2
    bounds: ClassVar[tuple[float, float]] = (0, 23)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        if not hasattr(policy(trainer), "peft_config"):
            raise ConfigError(needs_lora(self.name))
        base, merged, sampler = (WeightCopy(policy(trainer)) for _ in range(3))

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            merged.deliver(policy(trainer))
            tensors = (copy.model.parameters() for copy in (base, merged, sampler))
            with torch.no_grad():
                # What the sampler starts with is exact: only what a merge adds is rounded.
                for w0, w1, played in zip(*tensors, strict=True):
                    played.copy_(w0 + (rounded(w1, strength) - rounded(w0, strength)))
            sampler.version = trainer.state.global_step
            with swapped(engine, _weights=sampler):
                yield

        while_sampling(trainer, self.name, change)
