"""Sampler and trainer of a mixture of experts choose other experts for the same token.

Routers take the largest of a few numbers that often lie close together, so that a sampler whose
router rounds otherwise sends tokens elsewhere, although all weights are the same. Seen with
Qwen3-30B-A3B: about one choice in ten, and some choice of nearly every token (arXiv 2510.11370).

The lab policy has no experts, so that it gets some first: each feed-forward layer becomes four,
which share its weights and differ in a fixed scale of what they read, and a router that sends each
token to one of them. The sampler tells the experts that it chose, as vLLM does.

Strength: bits behind the leading one that the sampler's router keeps. At 23 both sides choose
alike: the healthy twin. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flatline.config import RunConfig
from flatline.faults.base import Fault
from flatline.faults.rounding import rounded
from flatline.faults.sampler import policy, while_sampling
from flatline.faults.wrapping import wrap
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer

EXPERTS, APART = 4, 0.3
"""Experts of a layer, and how far their scales are apart."""
EXTRA = 5
"""Where in what TRL's `_generate` returns stands what a sampler adds."""


class ExpertsRerouted(Fault):
    name: ClassVar[str] = "experts-rerouted"
    hypothesis: ClassVar[str] = "H62"
    default: ClassVar[float] = 1
    bounds: ClassVar[tuple[float, float]] = (0, 23)

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, sampler_weights="live")  # a copy would have no experts

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        routers = _with_experts(policy(trainer))
        told: list[Any] = []

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            healthy = engine.play

            def play(*args: Any, **kwargs: Any) -> Any:
                rollouts = healthy(*args, **kwargs)
                told[:] = [_chosen(engine.model, routers, one) for one in rollouts]
                return rollouts

            with _rounding(routers, strength), swapped(engine, play=play):
                yield

        def generate(inner: Any, prompts: Any) -> Any:
            found = inner(prompts)
            found[EXTRA]["routed_experts"] = list(told)
            return found

        while_sampling(trainer, self.name, change)
        wrap(trainer, "_generate", generate)


class _Router(nn.Module):
    """One number for each expert."""

    weight: Tensor

    def __init__(self, width: int, numbers: torch.Generator) -> None:
        super().__init__()
        weight = torch.randn(EXPERTS, width, generator=numbers) / width**0.5
        self.register_buffer("weight", weight, persistent=False)
        self.bits: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = x @ self.weight.T.to(x)
        return logits if self.bits is None else rounded(logits, self.bits)


class _Routed(nn.Module):
    """A feed-forward layer, as several experts."""

    experts: Tensor

    def __init__(self, inner: nn.Module, width: int, numbers: torch.Generator) -> None:
        super().__init__()
        self.inner, self.gate = inner, _Router(width, numbers)
        scales = 1 + APART * torch.randn(EXPERTS, width, generator=numbers)
        self.register_buffer("experts", scales, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x * self.experts[self.gate(x).argmax(-1)].to(x))
        return found


def _with_experts(model: Any) -> list[_Router]:
    numbers = torch.Generator().manual_seed(0)
    layers = [one for one in model.modules() if hasattr(one, "mlp")]
    for layer in layers:
        layer.mlp = _Routed(layer.mlp, model.config.hidden_size, numbers).to(model.device)
    return [layer.mlp.gate for layer in layers]


@contextmanager
def _rounding(routers: list[_Router], bits: float) -> Iterator[None]:
    for router in routers:
        router.bits = bits
    try:
        yield
    finally:
        for router in routers:
            router.bits = None


@torch.no_grad()
def _chosen(model: Any, routers: list[_Router], rollout: Any) -> Any:
    """Experts of every token and layer of a rollout."""
    heard: list[Tensor] = []
    hooks = [one.register_forward_hook(lambda *call: heard.append(call[2])) for one in routers]
    ids = torch.tensor([*rollout.prompt_ids, *rollout.completion_ids], device=model.device)
    model(input_ids=ids[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack([one[0].argmax(-1) for one in heard], dim=1).cpu().numpy()
