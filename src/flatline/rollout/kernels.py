"""Layers of a decoding step in fewer kernels.

A step of one token a row is bound by the number of its kernels, not by what they compute. PEFT
casts the input of LoRA twice, scales and adds; one matrix product can scale and add as well: four
kernels instead of seven. RMSNorm is one kernel instead of seven, and gives the linear layers that
follow the precision that each would cast to. On a GPU turning queries and keys is one instead of
ten.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from flatline.rollout.grouped import reads_own_keys

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")


@contextmanager
def fused(model: Any) -> Iterator[None]:
    """Plain layers inside compute the same with fewer kernels; others keep their own way."""
    modules = list(model.modules())
    found = {module: parts_of(module) for module in modules if hasattr(module, "lora_A")}
    adapted = {module: parts for module, parts in found.items() if parts is not None}
    norms = [module for module in modules if _is_norm(module)]
    for layer, parts in adapted.items():
        layer.forward = _forward(parts)
    for norm in norms:
        norm.forward = _norm(norm)
    try:
        yield
    finally:
        for layer in (*adapted, *norms):
            del layer.forward


@contextmanager
def rotating(model: Any) -> Iterator[None]:
    """Queries and keys inside are turned in one kernel, where they can be."""
    if not reads_own_keys(model):
        yield
        return
    from flatline.rollout import own_keys

    module: Any = sys.modules[type(model).__module__]
    before = module.apply_rotary_pos_emb

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **others: Any) -> Any:
        if others or not q.is_cuda or cos.dtype != torch.float32:
            return before(q, k, cos, sin, **others)  # its own way rounds in between
        return own_keys.rotated(q, k, cos, sin, precision_of(q))

    module.apply_rotary_pos_emb = rotate
    try:
        yield
    finally:
        module.apply_rotary_pos_emb = before


def _is_norm(module: Any) -> bool:
    """One of those whose formula is torch's own; Gemma's, for one, is another."""
    return type(module).__name__ in NORMS and not _is_changed(module)


def _norm(module: Any) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        made = rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)
        return made.to(precision_of(x))

    return forward


def precision_of(x: Tensor) -> torch.dtype:
    """What a linear layer computes in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Parts(NamedTuple):
    """A linear layer, and what LoRA adds to it."""

    base: nn.Linear
    down: nn.Linear | None = None
    up: nn.Linear | None = None
    scale: float = 0.0

    @property
    def layers(self) -> list[nn.Linear]:
        return [layer for layer in self[:3] if isinstance(layer, nn.Linear)]


def parts_of(module: Any) -> Parts | None:
    """A plain linear layer, or LoRA on one with one adapter in force; None where anything listens
    or differs."""
    if type(module) is nn.Linear:
        return None if _is_changed(module) else Parts(module)
    if not hasattr(module, "lora_A") or type(getattr(module, "base_layer", None)) is not nn.Linear:
        return None
    names = module.active_adapters
    if module.disable_adapters or module.merged_adapters or len(names) != 1:
        return None
    name = names[0]
    if name not in module.lora_A or name in getattr(module, "lora_variant", {}):
        return None
    parts = Parts(module.base_layer, module.lora_A[name], module.lora_B[name], module.scaling[name])
    same = len({layer.weight.dtype for layer in parts.layers}) == 1
    has_no_bias = all(layer.bias is None for layer in parts.layers[1:])
    drops = module.lora_dropout[name].training and type(module.lora_dropout[name]) is nn.Dropout
    changed = any(map(_is_changed, (module, *parts.layers)))
    return parts if same and has_no_bias and not drops and not changed else None


def _is_changed(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def _forward(parts: Parts) -> Callable[[Tensor], Tensor]:
    base, down, up, scale = parts
    assert down is not None and up is not None

    def forward(x: Tensor) -> Tensor:
        rows = x.to(precision_of(x)).flatten(0, -2)
        plain = linear(rows, base.weight, base.bias)
        made = torch.addmm(plain, linear(rows, down.weight), up.weight.t(), alpha=scale)
        return made.view(*x.shape[:-1], made.shape[-1])

    return forward
