"""What a completion earned: the weighted sum of what each function paid for it.

    r_i = sum_f  w_f * r_if

A function that pays nothing for a row (None) is left out of its sum; a row that no function pays
has no reward, NaN. RLOO takes the distance from the reference off the reward, where GRPO has it in
the loss (Ahmadian et al., 2024, equation 1):

    r_i - beta * sum_t  log pi_old(o_t) - log pi_ref(o_t)
"""

import torch
from torch import Tensor

from flatline.spec.asked import Asked, NotSpecified


def weights(asked: Asked, functions: int) -> Tensor:
    """One for each function."""
    return torch.tensor(asked.reward_weights or [1.0] * functions, dtype=torch.float64)


def penalised(asked: Asked, paid_BF: Tensor, kl_B: Tensor | None) -> Tensor:
    """What advantages are taken of: the reward of each row, cut to its range, less its KL where
    that is in the reward."""
    reward_B = total(asked, paid_BF)
    if asked.reward_range is not None:
        reward_B = reward_B.clamp(*asked.reward_range)
    if asked.kl_place == "loss" or not asked.beta:
        return reward_B
    if kl_B is None:
        raise NotSpecified("a KL in the reward of which nothing is known")
    return reward_B - asked.beta * kl_B.double().cpu()


def total(asked: Asked, paid_BF: Tensor) -> Tensor:
    """The reward of each row."""
    paid_BF = paid_BF.double().cpu()
    total_B = (paid_BF * weights(asked, paid_BF.shape[1])).nansum(1)
    total_B[paid_BF.isnan().all(1)] = torch.nan
    return total_B
