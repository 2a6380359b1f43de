"""Tensors: copied once, put back in place, and compared by a sum over their bits.

The sum is taken on the device where a tensor lies, in pieces: no weight travels to the host for it.
Every bit counts, and so does its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatline.live.held import copies, elements, parts, read
from flatline.live.restore.place import Place

COPIED_UP_TO = 1_000_000_000
"""Elements that are copied of tensors that neither model nor optimizer hold, and weights of a model
of which frozen ones are. Beyond, a change is told and cannot be put back."""
PIECE = 1 << 22
"""Elements that are summed at a time."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor, and where it was found."""

    tensor: Tensor
    place: Place
    must: bool
    """A step changes it: it is copied, however large it is."""
    watched: bool = False
    """Nothing changes it: it is compared, and not copied."""
    alias: bool = False
    """Its memory is that of another, which is found already."""


class Tensors:
    """Values of many tensors, copied where there is room."""

    def __init__(self, found: Sequence[Found]) -> None:
        kept = [one for one in found if _can_be_written(one.tensor)]
        self._all, room = kept, COPIED_UP_TO
        copied: list[Found] = []
        self.watched: list[Found] = []
        """Too many to copy."""
        for one in (one for one in kept if not one.alias):
            size = 0 if one.must else elements(one.tensor)
            fits = size <= room and not one.watched
            room -= size if fits else 0
            (copied if fits else self.watched).append(one)
        self.copied = copied
        self._plain = [one for one in copied if not one.tensor.is_inference()]
        self._others = [one for one in copied if one.tensor.is_inference()]
        self._own = [part for one in self._plain for part in parts(one.tensor)]
        own = [one.tensor for one in kept if type(one.tensor) in (Tensor, torch.nn.Parameter)]
        self._movable = [
            (tensor, tensor.detach())
            for tensor in own
            if not tensor.is_inference() and not hasattr(tensor, "ds_tensor")
        ]
        """Each with the memory that it had: `p.data = other` gives it another."""
        self._saved = copies(self._own)
        self._saved_others = [one.tensor.clone() for one in self._others]

    def put_back(self) -> None:
        for tensor, memory in self._movable:
            if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape:
                tensor.data = memory
        if self._own:
            torch._foreach_copy_(self._own, self._saved)
        with torch.inference_mode():
            for one, saved in zip(self._others, self._saved_others, strict=True):
                one.tensor.copy_(saved)

    def states(self) -> list[tuple[Place, str]]:
        """By place, what can be compared."""
        return [
            (one.place, str([checksum(part) for part in parts(one.tensor)])) for one in self._all
        ]


class Gradient:
    """Whose gradient it is, which tensor, with which values, and whether it is trained at all."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        self.place, self._weight = place, weight
        self._gradient, self._trainable = weight.grad, weight.requires_grad
        self._saved = [] if weight.grad is None else copies([weight.grad])

    def put_back(self) -> None:
        self._weight.grad = self._gradient
        if self._weight.requires_grad != self._trainable:
            self._weight.requires_grad_(self._trainable)
        if self._gradient is not None:
            read(self._gradient).copy_(self._saved[0])

    def state(self) -> str:
        gradient = self._weight.grad
        said = None if gradient is None else (id(gradient), checksum(read(gradient)))
        return str((self._weight.requires_grad, said))


def checksum(tensor: Tensor) -> tuple[str, tuple[int, ...], int]:
    """Of the bits: a single one that changes makes another sum, and so do two that change
    places."""
    shape, flat = tuple(tensor.shape), tensor.detach().contiguous().reshape(-1)
    bits = flat.view(_BITS.get(flat.element_size(), torch.int64)) if flat.numel() else flat.long()
    sums = [_summed(bits[at : at + PIECE]) for at in range(0, len(bits), PIECE)]
    total = hash(tuple(torch.stack(sums).tolist())) if sums else 0
    return str(tensor.dtype), shape, total


def _summed(piece: Tensor) -> Tensor:
    places = torch.arange(1, 2 * len(piece), 2, device=piece.device)
    return ((piece.long() + 1) * places * _ODD).sum()


def _can_be_written(tensor: Tensor) -> bool:
    """Not of what has no memory of its own, or has the same element in two places."""
    if tensor.is_meta or not isinstance(tensor, Tensor):
        return False
    if hasattr(tensor, "ds_tensor") or hasattr(tensor, "to_local"):
        return True
    if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.numel():
        return False
    return int(torch._debug_has_internal_overlap(tensor)) != 1
