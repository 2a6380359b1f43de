"""LoRA's layers, asked one by one: base(x) + alpha / r B A x (Hu et al., 2021).

Policy, sampler and reference are one model with its adapters on or off, so no comparison between
them shows an adapter that adds something else than it should.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flatline.live.stage_found import StageFound, departs

OTHER_FORMS = ("use_dora", "use_qalora", "alora_invocation_tokens", "arrow_config")
"""Options of PEFT with which a layer is another sum."""
INPUTS = 4
"""Random inputs that a layer is asked for."""
ROUNDINGS = 16
"""Last bits of the layer's output that may be lost: what it adds is seen as a difference."""
ASIDE = 1e-2
"""Share of what is added that may be another."""
OPENING = "The adapter of "
"""Every finding of this look begins with it."""


class _Layer(NamedTuple):
    name: str
    layer: Any
    scale: float


def judge_adapters(trainer: Any) -> StageFound | None:
    """None where every plain layer adds what its matrices say, with the weights as they are, or
    where a layer cannot be asked by itself."""
    with suppress(Exception):  # sharded or packed weights are no matrices
        return next((found for one in layers(trainer) if (found := judged(one))), None)
    return None


def layers(trainer: Any) -> Iterator[_Layer]:
    """Those that can be asked by themselves."""
    yield from _plain_layers(trainer.accelerator.unwrap_model(trainer.model))


def judged(one: _Layer) -> StageFound | None:
    """None where the layer adds what its matrices say."""
    values = specified(one)
    with torch.no_grad():
        found = one.layer(values["x"]) - values["base"]
    expected = values["added"]
    lost = ROUNDINGS * torch.finfo(found.dtype).eps * float(values["base"].abs().max())
    size = float(expected.abs().max())
    if float((found - expected).abs().max()) <= ASIDE * size + lost or size <= lost:
        return None
    cosine = nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0)
    return departs(
        "log-probs",
        f"{OPENING}`{one.name}` does not add {one.scale:g} B A x to its layer: it adds "
        f"{float(found.norm() / expected.norm()):.3g} times as much (cosine {float(cosine):.3f}).",
    )


def specified(one: _Layer) -> dict[str, Tensor]:
    """What passes through such a layer for random inputs, and what it must give."""
    adapter = one.layer.active_adapters[0]
    a, b = one.layer.lora_A[adapter].weight, one.layer.lora_B[adapter].weight
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(INPUTS, a.shape[1], generator=draw).to(a)
    with torch.no_grad():
        base, low, high = one.layer.base_layer(x), x @ a.T, x @ a.T @ b.T
    named = {"x": x, "base": base, "A x": low, "B A x": high, "added": one.scale * high}
    named["sum"] = base + one.scale * high
    return {name: value.detach() for name, value in named.items()}


def _plain_layers(model: Any) -> Iterator[_Layer]:
    """Linear layers with one plain adapter in force, and what it is to be multiplied with."""
    configs = getattr(model, "peft_config", {})
    for name, layer in model.named_modules():
        on: Sequence[str] = getattr(layer, "active_adapters", ())
        if not isinstance(getattr(layer, "base_layer", None), nn.Linear) or len(on) != 1:
            continue
        config, matrices = configs.get(on[0]), getattr(layer, "lora_A", {})
        if config is None or on[0] not in matrices or layer.disable_adapters or layer.merged:
            continue
        if any(getattr(config, one, None) for one in OTHER_FORMS) or config.alpha_pattern:
            continue
        same = matrices[on[0]].weight.dtype == layer.base_layer.weight.dtype
        if not same or layer.lora_B[on[0]].bias is not None:
            continue
        rank = matrices[on[0]].out_features
        root = math.sqrt(rank) if config.use_rslora else rank
        yield _Layer(name, layer, config.lora_alpha / root)
