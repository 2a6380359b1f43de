"""Keys and values of many conversations of different lengths, kept between turns.

Every conversation owns a slot and writes each token at that token's position, so lengths may differ
freely and nothing is ever padded inside the cache. The conversations in play are kept in the first
slots: a forward pass then reads a plain view, and one that pauses or ends costs nothing.

The last column is a bin: padding of a ragged input is written there and never read.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

GROWTH = 32
"""Capacity is a multiple of this many tokens."""


class SlotCache(Cache):  # type: ignore[misc]  # transformers has no usable types
    """A `Cache` that Hugging Face models write to; the engine says beforehand where."""

    is_compileable = False
    is_sliding: list[bool] = []  # noqa: RUF012  # read by the mask code, which our 4-D mask bypasses

    def __init__(self, slots: int, *, capacity: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.capacity = _rounded(capacity)
        self.used = 0
        """Tokens of the longest conversation so far; nothing beyond is worth copying."""
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._slots_B = torch.empty(0)
        self._rows: slice | Tensor = slice(0)
        """The same slots; a slice where it can be, for that reads without copying."""
        self._width = 0
        self._columns_BT = torch.empty(0)
        self._indices: dict[int, Tensor] = {}

    @property
    def bin(self) -> int:
        """Column where padding goes."""
        return self.capacity

    def aim(self, write_BT: Tensor, *, width: int, slots: Sequence[int] | None = None) -> None:
        """Say where the next forward pass writes and reads.

        Row i has slot `slots[i]`, or i if none are given; its tokens go to columns `write_BT[i]`,
        and it may look at the first `width` columns.
        """
        rows = range(len(write_BT))
        plain = slots is None or list(slots) == list(rows)
        device = write_BT.device
        self._slots_B = (
            torch.arange(len(rows), device=device) if plain else torch.tensor(slots, device=device)
        )
        self._rows = slice(len(rows)) if plain else self._slots_B
        self._width = width
        self.used = max(self.used, width)
        self._columns_BT = write_BT
        self._indices.clear()

    def reserve(self, tokens: int) -> None:
        """Make room for conversations of this length."""
        if tokens <= self.capacity:
            return
        # A little at a time: a CPU reads the gaps between conversations nearly as slowly as the
        # conversations, and copying these now and then is little beside reading them every step.
        self.capacity = _rounded(max(tokens, self.capacity + self.capacity // 8))
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                new = old.new_empty(self._shape(old))
                new[:, :, : self.used] = old[: self.slots, :, : self.used]
                new[:, :, self.used :] = 0
                tensors[layer] = new

    def keep(self, slots: int) -> None:
        """Let go of all but the first slots. Their memory is free when the rest next grows."""
        self.slots = slots

    def copy(self, source: list[int], target: list[int]) -> None:
        """Copy slots onto others at once, so that a swap is one call."""
        if not (source and self._keys):
            return
        device = self._keys[0].device
        source_B, target_B = (torch.tensor(slots, device=device) for slots in (source, target))
        for tensor in (*self._keys, *self._values):
            read = tensor[:, :, : self.used]
            read.index_copy_(0, target_B, read.index_select(0, source_B))

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        while len(self._keys) <= layer_idx:
            self._keys.append(self._new(key_states))
            self._values.append(self._new(value_states))
        keys = self._write(self._keys[layer_idx], key_states)
        return keys, self._write(self._values[layer_idx], value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.used

    def _new(self, states: Tensor) -> Tensor:
        # Zeros, not garbage: attention multiplies masked values by zero, and NaN survives that.
        # In the precision that attention computes in: a cast now saves one of everything a step.
        return states.new_zeros(self._shape(states), dtype=_precision_of(states))

    def _shape(self, states: Tensor) -> tuple[int, int, int, int]:
        return self.slots, states.shape[1], self.capacity + 1, states.shape[3]

    def _write(self, tensor: Tensor, states: Tensor) -> Tensor:
        """Store [rows, heads, tokens, size]; return everything the rows may look at."""
        heads, size = states.shape[1], states.shape[3]
        if heads not in self._indices:
            self._indices[heads] = self._index(heads)
        rows = states.reshape(-1, size).to(tensor.dtype)
        tensor.view(-1, size).index_copy_(0, self._indices[heads], rows)
        return tensor[self._rows, :, : self._width]

    def _index(self, heads: int) -> Tensor:
        """Where each row, head and token of this pass goes in the tensor seen as rows of `size`."""
        slots_B = self._slots_B
        heads_BH = slots_B[:, None] * heads + torch.arange(heads, device=slots_B.device)
        index_BHT = heads_BH[:, :, None] * (self.capacity + 1) + self._columns_BT[:, None]
        return index_BHT.flatten()


def _precision_of(x: Tensor) -> torch.dtype:
    """What attention computes in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _rounded(tokens: int) -> int:
    return -(-max(tokens, 1) // GROWTH) * GROWTH
