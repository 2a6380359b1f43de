"""Numbers with fewer digits, which faults of precision share."""

import torch
from torch import Tensor

BFLOAT16 = 7
"""Bits behind the leading one that a bf16 number keeps; float16 has 10 and float32 has 23."""


def rounded(values: Tensor, bits: float) -> Tensor:
    """The nearest numbers with so many bits behind the leading one, in the type they had."""
    mantissa, exponent = torch.frexp(values)
    grid = 2.0 ** (int(bits) + 1)
    return torch.ldexp(torch.round(mantissa * grid) / grid, exponent)
