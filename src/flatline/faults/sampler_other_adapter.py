"""The model carries a second adapter, and the sampler plays with that one.

Seen where several tenants share a server: SkyRL pull request 1621 switches the adapter before it
exports weights, since vLLM would get those of another tenant otherwise.

Strength: size of the other adapter's B, beside which 0 is none. Needs LoRA and flatline's own
sampler.
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

OTHER = "other"
"""Its name."""


class SamplerOtherAdapter(Fault):
    name: ClassVar[str] = "sampler-other-adapter"
    hypothesis: ClassVar[str] = "H69"
    default: ClassVar[float] = 0.05

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        model = policy(trainer)
        if not hasattr(model, "peft_config"):
            raise ConfigError(needs_lora(self.name))
        _add(model, strength, trainer.args.seed)
        sampler = WeightCopy(model)

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            sampler.version = trainer.state.global_step
            with swapped(engine, _weights=sampler):
                yield

        own = model.active_adapter
        model.set_adapter(OTHER)
        sampler.deliver(model)
        model.set_adapter(own)
        while_sampling(trainer, self.name, change)


@torch.no_grad()
def _add(model: Any, strength: float, seed: int) -> None:
    """An adapter like the one that is trained, which has learnt something else."""
    model.add_adapter(OTHER, model.peft_config[model.active_adapter])
    numbers = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if f"lora_B.{OTHER}." in name:
            drawn = torch.randn(weight.shape, generator=numbers) * strength
            weight.copy_(drawn.to(weight))
