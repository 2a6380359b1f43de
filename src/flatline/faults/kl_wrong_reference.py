"""The KL divergence is measured to other weights than those the policy started from.

The policy is pulled to a model that it never was. Seen in a mild form in verifiers with ZeRO-3,
which loads the reference apart, in another precision and with another attention.

Strength: noise on each weight matrix of the reference, as a share of its own spread. A run without
KL gets beta 0.04.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch

from flatline.config import RunConfig
from flatline.faults.base import Fault
from flatline.faults.scoring import USUAL_BETA, is_reference
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class KlWrongReference(Fault):
    name: ClassVar[str] = "kl-wrong-reference"
    hypothesis: ClassVar[str] = "H03"
    default: ClassVar[float] = 0.5
    bounds: ClassVar[tuple[float, float]] = (0, 100)

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, kl_beta=config.kl_beta or USUAL_BETA)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def score(inner: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_reference(trainer, model):
                return inner(model, *args, **kwargs)
            with _perturbed(model, strength):
                return inner(model, *args, **kwargs)

        wrap(trainer, "_get_per_token_logps_and_entropies", score)


@contextmanager
def _perturbed(model: Any, strength: float) -> Iterator[None]:
    """The same noise each time, taken away to the last bit."""
    generator = torch.Generator().manual_seed(0)
    weights = [p for n, p in model.named_parameters() if p.dim() > 1 and "lora_" not in n]
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight in weights:
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            weight.add_(noise * (strength * float(weight.std())))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
