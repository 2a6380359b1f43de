"""What a completion earned: the weighted sum of what each function paid for it.

    r_i = sum_f  w_f * r_if

A function that pays nothing for a row (None) is left out of its sum; a row that no function pays
has no reward, NaN.
"""

import torch
from torch import Tensor

from flatline.spec.asked import Asked


def weights(asked: Asked, functions: int) -> Tensor:
    """One for each function."""
    return torch.tensor(asked.reward_weights or [1.0] * functions, dtype=torch.float64)


def total(asked: Asked, paid_BF: Tensor) -> Tensor:
    """The reward of each row."""
    paid_BF = paid_BF.double().cpu()
    total_B = (paid_BF * weights(asked, paid_BF.shape[1])).nansum(1)
    total_B[paid_BF.isnan().all(1)] = torch.nan
    return total_B
