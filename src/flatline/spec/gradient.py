"""Two gradients side by side, without a second copy of either.

The gradient of a step is the sum over its rows of share times the gradient of the row's token
losses. Two of them are compared tensor by tensor, by inner products alone: cosine and ratio of
lengths say everything that matters about the whole, and the tensor with the largest difference says
where.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

PIECE = 2**24
"""Elements that are multiplied at a time: all of a large embedding twice in double precision would
take more memory than a step."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A found vector against the expected one."""

    cosine: float
    """NaN where one of them is 0."""
    length: float
    """Found over expected; NaN where none is expected."""
    worst: str
    """Tensor with the largest difference."""
    both_zero: bool
    """Nothing was expected and nothing was found."""


def compare(pairs: Iterable[tuple[str, Tensor | None, Tensor | None]]) -> Compared:
    """Name, found and expected of every tensor; None stands for 0."""
    product = found_square = expected_square = 0.0
    worst, largest = "", -1.0
    for name, found, expected in pairs:
        a2, ab, b2 = _products(found, expected)
        product += ab
        found_square += a2
        expected_square += b2
        if a2 + b2 - 2 * ab > largest:
            worst, largest = name, a2 + b2 - 2 * ab
    sizes = math.sqrt(found_square * expected_square)
    return Compared(
        cosine=product / sizes if sizes else math.nan,
        length=math.sqrt(found_square / expected_square) if expected_square else math.nan,
        worst=worst,
        both_zero=not found_square and not expected_square,
    )


def _products(a: Tensor | None, b: Tensor | None) -> tuple[float, float, float]:
    """a . a, a . b and b . b, in double precision and a piece at a time."""
    one = a if a is not None else b
    if one is None:
        return 0.0, 0.0, 0.0
    sums = [0.0, 0.0, 0.0]
    for at in range(0, one.numel(), PIECE):
        x, y = (_piece(tensor, at, one) for tensor in (a, b))
        for k, (left, right) in enumerate(((x, x), (x, y), (y, y))):
            if left is not None and right is not None:
                sums[k] += float(left @ right)
    return sums[0], sums[1], sums[2]


def _piece(tensor: Tensor | None, at: int, beside: Tensor) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.detach().flatten()[at : at + PIECE].to(beside.device).double()


def clip_factor(norm: float, largest: float) -> float:
    """What a gradient is multiplied with so that it is not longer than `largest` (Pascanu et al.,
    2013); 1 where nothing is clipped. 1e-6 keeps it off a division by 0."""
    return min(1.0, largest / (norm + 1e-6)) if largest else 1.0
