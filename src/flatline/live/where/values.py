"""What a statement reads and writes, kept small: copies of tensors, lists and numbers."""

import hashlib
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST = 1 << 18
"""Numbers of a tensor or list that is kept; logits are larger, and nothing is said of them."""
DEEP = 3
"""Lists in lists that are followed."""


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A copy of something that passed by."""

    key: str
    """Equal for equal contents."""
    content: Any
    """A tensor in double precision, a tuple of values, a dict of them, or a plain value."""
    slope: Tensor | None = None
    """Derivative by the log-probs of the pass, of the sum of its elements times `probe`."""


class Copies:
    """Takes copies; the same tensor is copied once until somebody writes to it."""

    def __init__(self) -> None:
        self.leaf: Tensor | None = None
        """The log-probs of the pass that runs; slopes are taken by them."""
        self._known: dict[int, tuple[Any, int, Any, Value | None]] = {}

    def of(self, thing: Any, depth: int = 0) -> Value | None:
        """None of what is no data."""
        if isinstance(thing, Tensor):
            return self._tensor(thing)
        if thing is None or isinstance(thing, bool | int | float | str):
            return Value(repr(thing)[:200], thing)
        if isinstance(thing, list | tuple) and depth < DEEP and len(thing) <= MOST:
            return self._listed(thing, depth)
        if isinstance(thing, UserDict):  # what tokenizers give
            thing = thing.data
        if isinstance(thing, dict) and depth < DEEP:
            return self._mapped(thing, depth)
        return None

    def _listed(self, thing: Any, depth: int) -> Value | None:
        if all(type(one) is int for one in thing) or all(type(one) is float for one in thing):
            return Value(repr(list(thing)), torch.tensor(thing, dtype=torch.float64))
        parts = [self.of(one, depth + 1) for one in thing]
        kept = tuple(one for one in parts if one is not None)  # a tuple may hold a model as well
        told = "".join("?" if one is None else one.key for one in parts)
        return Value(_digest(told.encode()), kept) if kept else None

    def _mapped(self, thing: Mapping[Any, Any], depth: int) -> Value | None:
        parts = {str(name): self.of(one, depth + 1) for name, one in thing.items()}
        kept = {name: one for name, one in parts.items() if one is not None}
        told = "".join(f"{name}{one.key}" for name, one in kept.items())
        return Value(_digest(told.encode()), kept) if kept or not thing else None

    def _tensor(self, tensor: Tensor) -> Value | None:
        if tensor.numel() > MOST or tensor.is_meta or tensor.layout != torch.strided:
            return None
        version = -1 if tensor.is_inference() else tensor._version
        known = self._known.get(id(tensor))
        if known is not None and known[0] is tensor and known[1:3] == (version, id(self.leaf)):
            return known[3]
        content = tensor.detach().to("cpu", torch.float64, copy=True)
        told = f"{tuple(content.shape)}".encode() + content.contiguous().numpy().tobytes()
        slope = self._slope(tensor)
        value = Value(_digest(told if slope is None else told + _bytes(slope)), content, slope)
        self._known[id(tensor)] = (tensor, version, id(self.leaf), value)
        return value

    def _slope(self, tensor: Tensor) -> Tensor | None:
        if self.leaf is None or not tensor.requires_grad or not torch.is_grad_enabled():
            return None
        if tensor is self.leaf:
            return probe(tensor.shape)
        return slope_of(tensor, self.leaf)


def says(value: Value, text: str) -> bool:
    """Whether a text is in it, or in one of its parts."""
    if isinstance(value.content, str):
        return text in value.content
    inner = value.content.values() if isinstance(value.content, dict) else value.content
    return isinstance(inner, tuple) | isinstance(value.content, dict) and any(
        says(one, text) for one in inner
    )


def slope_of(tensor: Tensor, leaf: Tensor) -> Tensor | None:
    """How the tensor moves with the leaf; None where it does not."""
    weighed = (tensor * probe(tensor.shape).to(tensor)).sum()
    (found,) = torch.autograd.grad(weighed, leaf, retain_graph=True, allow_unused=True)
    return None if found is None else found.detach().to("cpu", torch.float64, copy=True)


def probe(shape: torch.Size) -> Tensor:
    """Weights that tell elements apart, the same for every tensor of a shape."""
    return torch.cos(torch.arange(max(1, shape.numel()), dtype=torch.float64)).reshape(shape)


def _digest(told: bytes) -> str:
    return hashlib.blake2b(told, digest_size=12).hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()
