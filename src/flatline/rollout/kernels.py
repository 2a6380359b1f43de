"""Layers of a decoding step in fewer kernels.

A step of one token a row is bound by the number of its kernels, not by what they compute. PEFT
casts the input of LoRA twice, scales and adds; one matrix product can scale and add as well: four
kernels instead of seven. RMSNorm is one kernel instead of seven, and gives the linear layers that
follow the precision that each would cast to.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")


@contextmanager
def fused(model: Any) -> Iterator[None]:
    """Plain layers inside compute the same with fewer kernels; others keep their own way."""
    modules = list(model.modules())
    adapted = [module for module in modules if _is_plain(module)]
    norms = [module for module in modules if _is_norm(module)]
    for layer in adapted:
        layer.forward = _forward(layer)
    for norm in norms:
        norm.forward = _norm(norm)
    try:
        yield
    finally:
        for layer in (*adapted, *norms):
            del layer.forward


def _is_norm(module: Any) -> bool:
    """One of those whose formula is torch's own; Gemma's, for one, is another."""
    return type(module).__name__ in NORMS and not _is_changed(module)


def _norm(module: Any) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        made = rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)
        return made.to(_precision(x))

    return forward


def _precision(x: Tensor) -> torch.dtype:
    """What a linear layer computes in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _is_plain(module: Any) -> bool:
    """LoRA on a linear layer with one adapter in force, and nothing that listens or differs."""
    if not hasattr(module, "lora_A") or type(getattr(module, "base_layer", None)) is not nn.Linear:
        return False
    names = module.active_adapters
    if module.disable_adapters or module.merged_adapters or len(names) != 1:
        return False
    name = names[0]
    if name not in module.lora_A or name in getattr(module, "lora_variant", {}):
        return False
    parts = (module.base_layer, module.lora_A[name], module.lora_B[name])
    same = len({part.weight.dtype for part in parts}) == 1
    has_no_bias = all(part.bias is None for part in parts[1:])
    drops = module.lora_dropout[name].training and type(module.lora_dropout[name]) is nn.Dropout
    return same and has_no_bias and not drops and not any(map(_is_changed, (module, *parts)))


def _is_changed(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def _forward(layer: Any) -> Callable[[Tensor], Tensor]:
    name = layer.active_adapters[0]
    base, down, up = layer.base_layer, layer.lora_A[name], layer.lora_B[name]
    scale = layer.scaling[name]

    def forward(x: Tensor) -> Tensor:
        rows = x.to(_precision(x)).flatten(0, -2)
        plain = linear(rows, base.weight, base.bias)
        made = torch.addmm(plain, linear(rows, down.weight), up.weight.t(), alpha=scale)
        return made.view(*x.shape[:-1], made.shape[-1])

    return forward
