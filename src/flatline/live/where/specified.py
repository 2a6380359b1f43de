"""Values that the specification names, and whether one that passed by is among them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatline.live.where.values import Value


@dataclass(frozen=True, eq=False, slots=True)
class Specified:
    """One value as it must be."""

    name: str
    content: Tensor | tuple[Tensor, ...]
    """In double precision; rows of unequal length one by one."""
    mask: Tensor | None = None
    """Where it counts: behind a stop token a trainer may have anything."""
    slope: Tensor | None = None
    """Derivative by the log-probs; None where none is asked for."""


class Right:
    """Knows a specified value when it sees it."""

    def __init__(self, specified: Iterable[Specified], tolerance: float) -> None:
        self._specified = list(specified)
        self._tolerance = tolerance
        self._known: dict[str, str] = {}

    def name(self, value: Value) -> str:
        """Which value it is; empty where it is none."""
        if value.key not in self._known:
            self._known[value.key] = self._named(value)
        return self._known[value.key]

    def _named(self, value: Value) -> str:
        parts = _parts(value.content)
        if parts is not None:
            return self._listed(parts) or self._together(parts)
        content = _tensor(value.content)
        if content is None:
            return ""
        return next((one.name for one in self._specified if self._same(one, content, value)), "")

    def _same(self, one: Specified, content: Tensor, value: Value) -> bool:
        if isinstance(one.content, tuple):
            return False
        found, wanted = _flat(content), _flat(one.content)
        if found.shape != wanted.shape or not found.numel():
            return False
        if one.slope is not None and not self._follows(value, one, one.slope):
            return False
        if one.mask is None:
            return self._alike(found, wanted)
        mask = _flat(one.mask.bool())
        return bool(mask.any()) and self._alike(found[mask], wanted[mask])

    def _follows(self, value: Value, one: Specified, slope: Tensor) -> bool:
        """Whether it moves with the log-probs as it must, where it counts."""
        found = _slope(value, one)
        if one.mask is None or one.mask.shape != slope.shape or found.shape != slope.shape:
            return self._alike(found, slope)
        counts = one.mask.bool()
        return self._alike(found[counts], slope[counts])

    def _listed(self, parts: list[Value]) -> str:
        """A list of rows, one after the other as specified."""
        rows = [_tensor(part.content) for part in parts]
        for one in self._specified:
            wanted = one.content
            if isinstance(wanted, Tensor) and wanted.dim() == 2 and len(wanted) == len(rows):
                wanted = tuple(wanted)
            if not isinstance(wanted, tuple) or len(wanted) != len(rows):
                continue
            pairs = zip(rows, wanted, strict=True)
            if all(a is not None and self._alike(a, b) for a, b in pairs):
                return one.name
        return ""

    def _together(self, parts: list[Value]) -> str:
        """Different specified values in one tuple or dict."""
        data = [part for part in parts if _tensor(part.content) is not None or _parts(part.content)]
        named = [self.name(part) for part in data]
        return " and ".join(named) if named and all(named) and len(set(named)) == len(named) else ""

    def _alike(self, a: Tensor, b: Tensor) -> bool:
        if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
            return False
        off = (a - b).nan_to_num(nan=0.0, posinf=torch.inf, neginf=torch.inf).abs()
        size = b.nan_to_num(nan=0.0, posinf=1e9, neginf=-1e9).abs().max()
        return bool(off.max() <= self._tolerance * max(float(size), 1e-6))


def _parts(content: Any) -> list[Value] | None:
    if isinstance(content, dict):
        return list(content.values())
    return list(content) if isinstance(content, tuple) else None


def _tensor(content: Any) -> Tensor | None:
    if isinstance(content, Tensor):
        return content
    number = isinstance(content, int | float) and not isinstance(content, bool)
    return torch.tensor(float(content), dtype=torch.float64) if number else None


def _flat(tensor: Tensor) -> Tensor:
    """(B, 1) and (B,) are the same to a reader."""
    return tensor.squeeze()[None] if tensor.squeeze().dim() == 0 else tensor.squeeze()


def _slope(value: Value, one: Specified) -> Tensor:
    """Of what does not move with the log-probs it is 0."""
    assert one.slope is not None
    return torch.zeros_like(one.slope) if value.slope is None else value.slope
