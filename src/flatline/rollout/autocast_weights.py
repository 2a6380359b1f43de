"""Weights in the precision that autocast computes in, cast once a batch instead of once a step.

Autocast remembers its casts only of weights that are trained; those under an adapter it casts again
at every call. A step of decoding then reads them in fp32 and writes them in bf16 before it reads
what it needs: four times the memory traffic. A cast is a cast: the results are the same bit by bit.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flatline.rollout.joined import joined_layers


class Casts:
    """Low-precision copies of the weights of linear layers. They stay in place."""

    def __init__(self, model: Any) -> None:
        kind = model.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        self._joined = joined_layers(model, low) if low != torch.float32 else []
        within = {id(layer) for joined in self._joined for layer in joined.layers}
        self._layers = [
            module
            for module in model.modules()
            if type(module) is nn.Linear
            and module.weight.dtype == torch.float32 != low
            and id(module) not in within
        ]
        self._copies: dict[int, Tensor] = {}
        for layer in self._layers:
            weight = layer.weight.detach()
            self._copies.setdefault(id(layer.weight), torch.empty_like(weight, dtype=low))

    @property
    def nbytes(self) -> int:
        copies = sum(copy.nbytes for copy in self._copies.values())
        return copies + sum(joined.nbytes for joined in self._joined)

    def refresh(self) -> None:
        """Take the weights as they are now."""
        weights = {id(layer.weight): layer.weight.detach() for layer in self._layers}
        if weights:
            torch._foreach_copy_(list(self._copies.values()), list(weights.values()))
        for joined in self._joined:
            joined.refresh()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Layers inside have the copies for weights."""
        weights = [layer.weight for layer in self._layers]
        for layer, weight in zip(self._layers, weights, strict=True):
            copy = self._copies[id(weight)]
            layer._parameters["weight"] = nn.Parameter(copy, requires_grad=False)
        try:
            with ExitStack() as stack:
                for joined in self._joined:
                    stack.enter_context(joined.used())
                yield
        finally:
            for layer, weight in zip(self._layers, weights, strict=True):
                layer._parameters["weight"] = weight  # type: ignore[assignment]
