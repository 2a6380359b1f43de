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
        place = next((one.device for one in (expected, found) if one is not None), None)
        a, b = (
            None if one is None else one.detach().flatten().to(place).double()
            for one in (found, expected)
        )
        off = 0.0
        if a is not None:
            found_square += float(a @ a)
            off += float(a @ a)
        if b is not None:
            expected_square += float(b @ b)
            off += float(b @ b)
        if a is not None and b is not None:
            product += float(a @ b)
            off -= 2 * float(a @ b)
        if off > largest:
            worst, largest = name, off
    sizes = math.sqrt(found_square * expected_square)
    return Compared(
        cosine=product / sizes if sizes else math.nan,
        length=math.sqrt(found_square / expected_square) if expected_square else math.nan,
        worst=worst,
        both_zero=not found_square and not expected_square,
    )


def clip_factor(norm: float, largest: float) -> float:
    """What a gradient is multiplied with so that it is not longer than `largest` (Pascanu et al.,
    2013); 1 where nothing is clipped. 1e-6 keeps it off a division by 0."""
    return min(1.0, largest / (norm + 1e-6)) if largest else 1.0
