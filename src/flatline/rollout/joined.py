"""Layers that read the same input, as one.

A step of decoding is bound by the number of its kernels. Queries, keys and values are three
products of one input, nine with LoRA; with their weights one below the other they are one, and
three. The parts of LoRA lie in blocks along a diagonal, with zeros around them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from flatline.rollout.kernels import Parts, parts_of

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that read the same input, in the order in which the module calls them."""


class Joined:
    """Low-precision copies of sibling layers, one below the other. They stay in place."""

    def __init__(self, layers: list[Any], parts: list[Parts], precision: torch.dtype) -> None:
        bases = [part.base for part in parts]
        device, inputs = bases[0].weight.device, bases[0].in_features
        self._layers = layers
        self.layers = [layer for part in parts for layer in part.layers]
        """Whose weights are copied."""
        self._sizes = [base.out_features for base in bases]
        self._scale = max(part.scale for part in parts)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=precision, device=device)

        ranks = [0 if part.down is None else part.down.out_features for part in parts]
        self._weight_OI = zeros(sum(self._sizes), inputs)
        self._bias_O = zeros(sum(self._sizes)) if any(b.bias is not None for b in bases) else None
        self._down_RI = zeros(sum(ranks), inputs)
        self._up_OR = zeros(sum(self._sizes), sum(ranks))
        self._copies: list[tuple[Tensor, Tensor]] = []
        """Each place with the weight that is copied there."""
        outputs, inner = _spans(self._sizes), _spans(ranks)
        for part, out, rank in zip(parts, outputs, inner, strict=True):
            self._copies.append((self._weight_OI[out], part.base.weight.detach()))
            if self._bias_O is not None and part.base.bias is not None:
                self._copies.append((self._bias_O[out], part.base.bias.detach()))
            if part.down is not None and part.up is not None:
                self._copies.append((self._down_RI[rank], part.down.weight.detach()))
                self._copies.append((self._up_OR[out, rank], part.up.weight.detach()))

    @property
    def nbytes(self) -> int:
        held = (self._weight_OI, self._bias_O, self._down_RI, self._up_OR)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def refresh(self) -> None:
        """Take the weights as they are now."""
        places, weights = zip(*self._copies, strict=True)
        torch._foreach_copy_(list(places), list(weights))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """What every layer makes of the input."""
        rows = x.to(self._weight_OI.dtype).flatten(0, -2)
        made = linear(rows, self._weight_OI, self._bias_O)
        if len(self._down_RI):
            inner = linear(rows, self._down_RI)
            made = torch.addmm(made, inner, self._up_OR.t(), alpha=self._scale)
        return torch.split(made.view(*x.shape[:-1], -1), self._sizes, -1)

    @contextmanager
    def used(self) -> Iterator[None]:
        """The first layer inside computes for its siblings as well."""
        held: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        for number, layer in enumerate(self._layers):
            layer.forward = self._forward(number, held)
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward

    def _forward(
        self, number: int, held: list[tuple[Tensor, tuple[Tensor, ...]]]
    ) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if not held or held[0][0] is not x:
                held[:] = [(x, self(x))]
            made = held[0][1][number]
            if number == len(self._layers) - 1:
                held.clear()  # nothing is kept that nobody asks for
            return made

        return forward


def _spans(sizes: list[int]) -> list[slice]:
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def joined_layers(model: Any, precision: torch.dtype) -> list[Joined]:
    """All siblings that are plain, in fp32, and scale their adapters alike."""
    made = []
    for module in model.modules():
        for names in SIBLINGS:
            layers = [getattr(module, name, None) for name in names]
            parts = [parts_of(layer) for layer in layers]
            known = [part for part in parts if part is not None]
            if len(known) == len(layers) and _fit(known):
                made.append(Joined(layers, known, precision))
    return made


def _fit(parts: list[Parts]) -> bool:
    layers: list[nn.Linear] = [layer for part in parts for layer in part.layers]
    in_full = all(layer.weight.dtype == torch.float32 for layer in layers)
    scales = {part.scale for part in parts if part.down is not None}
    return in_full and len(scales) < 2 and len({part.base.in_features for part in parts}) == 1
