"""The table `weights`: norm, gradient, change of every trainable tensor.

Gradients are read before they are clipped. What a step changed is read from a copy of at most
`SAMPLE` elements of each tensor, every so many-th one, so that no random number is drawn. All of a
step's numbers reach the host in one transfer. Large models are looked at every few steps only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SAMPLE = 2**16
"""Elements of one tensor that are compared before and after a step."""
PER_STEP = {"cpu": 50_000_000, "cuda": 1_000_000_000}
"""Trained elements that are read at every step; of more, one step in several is recorded."""


@dataclass(slots=True)
class _Look:
    """What is known in the middle of a step."""

    before: list[Tensor]
    grads: list[Tensor | None] = field(default_factory=list)


class Census:
    """Looks at the trainable weights of a model around its optimizer steps."""

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self._weights = [weight for _, weight in trained]
        self._held = _held(optimizer, self._weights)
        elements = sum(_size(weight) for weight in self._weights)
        kind = self._weights[0].device.type if self._weights else "cpu"
        self.every = max(1, math.ceil(elements / PER_STEP.get(kind, PER_STEP["cuda"])))
        """Optimizer steps from one record to the next."""
        self._look: _Look | None = None

    def is_due(self, step: int) -> bool:
        """The first step, then every so many-th."""
        return bool(self._weights) and (step == 1 or step % self.every == 0)

    def before_step(self, *, scaled: bool) -> None:
        """Called with whole gradients; `scaled` ones (fp16) say nothing about their size."""
        self._look = _Look(before=[_sample(weight).clone() for weight in self._weights])
        grads = [None if scaled or _is_part(w) else w.grad for w in self._weights]
        known = iter(_norms([grad for grad in grads if grad is not None]))
        self._look.grads = [None if grad is None else next(known) for grad in grads]

    def grad_norm(self) -> Tensor | None:
        """Over all weights, for trainers that never clip."""
        known = [norm for norm in self._look.grads if norm is not None] if self._look else []
        return torch.stack([norm.to(known[0].device) for norm in known]).norm() if known else None

    def after_step(self, step: int) -> list[dict[str, Any]]:
        """A row for every tensor."""
        if self._look is None:
            return []
        look, self._look = self._look, None
        samples = [_sample(weight) for weight in self._weights]
        moved = [a.float() - b.float() for a, b in zip(samples, look.before, strict=True)]
        columns = {
            "norm": _norms([weight.detach() for weight in self._weights]),
            "grad_norm": look.grads,
            "update_norm": _norms(moved),
            "changed": _norms([(move != 0).float() for move in moved], order=1),
        }
        numbers = _fetch(columns)
        return [self._row(step, at, len_of(samples[at]), numbers) for at in range(len(self.names))]

    def _row(
        self, step: int, at: int, sampled: int, numbers: dict[str, list[float | None]]
    ) -> dict[str, Any]:
        weight, size = self._weights[at], _size(self._weights[at])
        change, changed = numbers["update_norm"][at] or 0.0, numbers["changed"][at] or 0.0
        return {
            "step": step,
            "name": self.names[at],
            "size": size,
            "dtype": str(weight.dtype).removeprefix("torch."),
            "norm": None if _is_part(weight) else numbers["norm"][at],
            "grad_norm": numbers["grad_norm"][at],
            # The sample stands for the whole tensor.
            "update_norm": change * math.sqrt(size / sampled) if sampled else None,
            "changed_share": changed / sampled if sampled else None,
            "sampled": sampled,
            "in_optimizer": self._held[at],
        }


def _held(optimizer: Any, weights: Sequence[Tensor]) -> list[int | None]:
    """Whether the optimizer has each of the weights; a sharded one may stand there as another."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        return [None] * len(weights)
    held = {id(weight) for group in groups for weight in group["params"]}
    return [None if _is_part(weight) else int(id(weight) in held) for weight in weights]


def len_of(sample: Tensor) -> int:
    return int(sample.numel())


def _sample(weight: Tensor) -> Tensor:
    """Every n-th element; n is odd, so that rows of even length are not met at one place only."""
    flat = _local(weight).reshape(-1)
    stride = math.ceil(flat.numel() / SAMPLE)
    return flat[:: stride | 1] if stride > 1 else flat


def _local(weight: Tensor) -> Tensor:
    """The part of a sharded weight that this process has."""
    local = weight.detach()
    return local.to_local() if hasattr(local, "to_local") else local


def _size(weight: Tensor) -> int:
    return int(getattr(weight, "ds_numel", weight.numel()))


def _is_part(weight: Tensor) -> bool:
    """Whether other processes hold the rest of it."""
    return hasattr(weight, "ds_numel") or hasattr(weight, "to_local")


def _norms(tensors: Sequence[Tensor], order: int = 2) -> list[Tensor]:
    if not tensors:
        return []
    local = [_local(tensor) for tensor in tensors]
    half = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in local)
    dtype = torch.float32 if half else None  # a norm in 16 bits has three digits
    return list(torch._foreach_norm(local, order, dtype))


def _fetch(columns: dict[str, Any]) -> dict[str, list[float | None]]:
    """Every number on the host, in one transfer."""
    known = [value for column in columns.values() for value in column if value is not None]
    device = known[0].device
    numbers = iter(torch.stack([value.float().to(device) for value in known]).tolist())
    return {
        name: [None if value is None else next(numbers) for value in column]
        for name, column in columns.items()
    }
