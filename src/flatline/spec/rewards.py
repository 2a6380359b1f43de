"""What a completion earned: the weighted sum of what each function paid for it.

    r_i = sum_f  w_f * r_if

A function that pays nothing for a row (None) is left out of its sum; a row that no function pays
has no reward, NaN. RLOO takes the distance from the reference off the reward, where GRPO has it in
the loss (Ahmadian et al., 2024, equation 1):

    r_i - beta * sum_t  log pi_old(o_t) - log pi_ref(o_t)
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatline.spec.asked import Asked, NotSpecified

Floats = NDArray[np.float64]


def weights(asked: Asked, functions: int) -> Floats:
    """One for each function."""
    return np.array(asked.reward_weights or [1.0] * functions, dtype=np.float64)


def penalised(asked: Asked, reward_B: Floats, kl_B: ArrayLike | None) -> Floats:
    """What advantages are taken of: the reward of each row, cut to its range, less its KL where
    that is in the reward."""
    if asked.reward_range is not None:
        reward_B = reward_B.clip(*asked.reward_range)
    if asked.kl_place == "loss" or not asked.beta:
        return reward_B
    if kl_B is None:
        raise NotSpecified("a KL in the reward of which nothing is known")
    return np.asarray(reward_B - asked.beta * np.asarray(kl_B, dtype=np.float64))


def total(asked: Asked, paid_BF: ArrayLike) -> Floats:
    """The reward of each row."""
    paid_BF = np.asarray(paid_BF, dtype=np.float64)
    total_B = np.nansum(paid_BF * weights(asked, paid_BF.shape[1]), axis=1)
    return np.where(np.isnan(paid_BF).all(axis=1), np.nan, total_B)
