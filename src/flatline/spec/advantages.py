"""How much better a completion was than the others of its prompt.

    A_i = (r_i - mean(r)) / std(r)      Shao et al., 2024, GRPO: mean and std of the group
    A_i =  r_i - mean(r)                Liu et al., 2025, Dr. GRPO, section 3.2: no spread
    A_i = (r_i - mean(r)) / std(R)      R the whole batch: Hu et al., 2025, REINFORCE++
    A_i = G / (G - 1) (r_i - mean(r))   Ahmadian et al., 2024, RLOO: the mean of the others

RLOO may divide its advantages by the spread of all of them, less their mean, instead.

Std has n - 1 below it, and 1e-4 is added against a division by 0. Rows without a reward count
nowhere and get 0. Several rewards, each normalised in its group before they are summed and the sum
normalised over the batch: Liu et al., 2026, GDPO.
"""

import torch
from torch import Tensor

from flatline.spec.asked import Asked, NotSpecified
from flatline.spec.rewards import penalised, weights

TINY = 1e-4
"""Added to a spread before it divides."""


def advantages(asked: Asked, paid_BF: Tensor, kl_B: Tensor | None = None) -> Tensor:
    """One for each row, in double precision; rows of a group stand together. `kl_B` is the distance
    of each row from the reference, where that is in the reward."""
    if asked.aggregation == "normalize_then_sum":
        return _normalised_then_summed(asked, paid_BF.double().cpu())
    if asked.aggregation != "sum_then_normalize":
        raise NotSpecified(f"rewards put together by {asked.aggregation!r}")
    reward_PG = penalised(asked, paid_BF, kl_B).view(-1, asked.group)
    centred_PG = _centred(asked, reward_PG)
    if asked.scale == "none":
        found_PG = centred_PG
    elif asked.scale == "group":
        found_PG = centred_PG / (spread(reward_PG) + TINY)
    elif asked.scale == "batch":
        found_PG = centred_PG / (spread(reward_PG.reshape(1, -1)) + TINY)
    elif asked.scale == "advantages":
        off_PG = centred_PG - centred_PG.nanmean()
        found_PG = off_PG / (spread(off_PG.reshape(1, -1)) + TINY)
    else:
        raise NotSpecified(f"advantages scaled by {asked.scale!r}")
    return found_PG.flatten().nan_to_num(nan=0.0)


def leave_one_out(reward_PG: Tensor) -> Tensor:
    """RLOO: each row against the mean of the others of its group that have a reward; NaN where
    there are none."""
    known = (~reward_PG.isnan()).sum(1, keepdim=True)
    others_PG = reward_PG.nansum(1, keepdim=True) - reward_PG
    return reward_PG - others_PG / (known - 1)


def _centred(asked: Asked, reward_PG: Tensor) -> Tensor:
    if asked.baseline == "others":
        return leave_one_out(reward_PG)
    if asked.baseline != "group":
        raise NotSpecified(f"a baseline of {asked.baseline!r}")
    return reward_PG - reward_PG.nanmean(1, keepdim=True)


def spread(values_PG: Tensor) -> Tensor:
    """Standard deviation of each line, n - 1 below, of what is known."""
    known = (~values_PG.isnan()).sum(1, keepdim=True)
    off_PG = values_PG - values_PG.nanmean(1, keepdim=True)
    return torch.sqrt(off_PG.square().nansum(1, keepdim=True) / (known - 1).clamp(min=1))


def _normalised_then_summed(asked: Asked, paid_BF: Tensor) -> Tensor:
    each = []
    for paid_B in paid_BF.unbind(1):
        paid_PG = paid_B.view(-1, asked.group)
        centred_PG = paid_PG - paid_PG.nanmean(1, keepdim=True)
        each.append((centred_PG / (spread(paid_PG) + TINY)).flatten())
    reward_B = (torch.stack(each, 1) * weights(asked, len(each))).nansum(1)
    reward_B[paid_BF.isnan().all(1)] = torch.nan
    scaled_B = (reward_B - reward_B.nanmean()) / (spread(reward_B[None])[0] + TINY)
    return scaled_B.nan_to_num(nan=0.0)
