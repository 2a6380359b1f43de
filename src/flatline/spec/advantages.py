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

import warnings

import numpy as np
from numpy.typing import ArrayLike

from flatline.spec.asked import Asked, NotSpecified
from flatline.spec.rewards import Floats, penalised, total, weights

TINY = 1e-4
"""Added to a spread before it divides."""
ROUNDINGS = 4
"""Last bits that a mean of float32 numbers may be off by."""


def advantages(asked: Asked, paid_BF: ArrayLike, kl_B: ArrayLike | None = None) -> Floats:
    """One for each row, in double precision; rows of a group stand together. `kl_B` is the distance
    of each row from the reference, where that is in the reward."""
    if asked.aggregation == "normalize_then_sum":
        return _normalised_then_summed(asked, np.asarray(paid_BF, dtype=np.float64))
    if asked.aggregation != "sum_then_normalize":
        raise NotSpecified(f"rewards put together by {asked.aggregation!r}")
    return of_totals(asked, total(asked, paid_BF), kl_B)


def of_totals(asked: Asked, reward_B: Floats, kl_B: ArrayLike | None = None) -> Floats:
    """The same where the sums are known already."""
    reward_PG = penalised(asked, reward_B, kl_B).reshape(-1, asked.group)
    centred_PG = _centred(asked, reward_PG)
    if asked.scale == "none":
        found_PG = centred_PG
    elif asked.scale == "group":
        found_PG = centred_PG / (spread(reward_PG) + TINY)
    elif asked.scale == "batch":
        found_PG = centred_PG / (spread(reward_PG.reshape(1, -1)) + TINY)
    elif asked.scale == "advantages":
        off_PG = centred_PG - np.nanmean(centred_PG)
        found_PG = off_PG / (spread(off_PG.reshape(1, -1)) + TINY)
    else:
        raise NotSpecified(f"advantages scaled by {asked.scale!r}")
    return np.asarray(np.nan_to_num(found_PG.reshape(-1), nan=0.0))


def beyond_rounding(
    asked: Asked, paid_BF: ArrayLike, found_B: ArrayLike, expected_B: ArrayLike
) -> Floats:
    """How far each advantage lies from the specified one, relative to 1 plus its size, beyond what
    a trainer that computes in float32 may be off by. `paid_BF` are the rewards of every function,
    or their sums alone."""
    paid_BF, expected_B = np.asarray(paid_BF, dtype=np.float64), np.asarray(expected_B)
    apart_B = np.abs(np.asarray(found_B) - expected_B) - rounded_by(asked, paid_BF)
    return np.asarray(np.maximum(apart_B, 0) / (1 + np.abs(expected_B)))


def rounded_by(asked: Asked, paid_BF: Floats) -> Floats:
    """How far the rounding of a sum and a mean in float32 may take each advantage. In a group whose
    rewards are all alike it is divided by nothing but `TINY`."""
    if asked.aggregation == "normalize_then_sum" and paid_BF.ndim == 2:
        return _rounded_twice(asked, paid_BF)
    reward_B = total(asked, paid_BF) if paid_BF.ndim == 2 else paid_BF
    reward_PG = reward_B.reshape(-1, asked.group)
    below = {"group": spread(reward_PG), "batch": spread(reward_PG.reshape(1, -1))}
    each_BF = paid_BF * weights(asked, paid_BF.shape[1]) if paid_BF.ndim == 2 else paid_BF[:, None]
    step_PG = _rounding(np.nansum(np.abs(each_BF), axis=1).reshape(-1, asked.group))
    found_PG = step_PG if asked.scale == "none" else step_PG / (below.get(asked.scale, 0) + TINY)
    return np.asarray(np.nan_to_num(found_PG).reshape(-1))


def _rounding(values_PG: Floats) -> Floats:
    """Of the mean of each line, in float32."""
    size_P = np.abs(np.nan_to_num(values_PG)).max(1, keepdims=True)
    return np.asarray(ROUNDINGS * float(np.finfo(np.float32).eps) * size_P + 0 * values_PG)


def _rounded_twice(asked: Asked, paid_BF: Floats) -> Floats:
    """What the first normalisation rounds, the second divides by the spread of the batch: where no
    group differs, that spread is itself nothing but rounding."""
    paid_PGF = paid_BF.T.reshape(paid_BF.shape[1], -1, asked.group)
    each = [_rounding(paid_PG) / (spread(paid_PG) + TINY) for paid_PG in paid_PGF]
    step_BF = np.nan_to_num(np.stack([one.reshape(-1) for one in each], axis=1))
    step = float((step_BF @ np.abs(weights(asked, paid_BF.shape[1]))).max())
    summed_B = _summed(asked, paid_BF)
    left = max(float(spread(summed_B[None])[0, 0]) - step, 0.0) + TINY
    off_B = np.abs(np.nan_to_num(summed_B - _mean(summed_B[None])[0])) / left
    return np.asarray((2 + off_B) * step / left)


def leave_one_out(reward_PG: Floats) -> Floats:
    """RLOO: each row against the mean of the others of its group that have a reward; NaN where
    there are none."""
    known_P = (~np.isnan(reward_PG)).sum(1, keepdims=True)
    others_PG = np.nansum(reward_PG, axis=1, keepdims=True) - reward_PG
    with np.errstate(all="ignore"):
        return np.asarray(reward_PG - others_PG / (known_P - 1))


def _centred(asked: Asked, reward_PG: Floats) -> Floats:
    if asked.baseline == "others":
        return leave_one_out(reward_PG)
    if asked.baseline != "group":
        raise NotSpecified(f"a baseline of {asked.baseline!r}")
    return np.asarray(reward_PG - _mean(reward_PG))


def spread(values_PG: Floats) -> Floats:
    """Standard deviation of each line, n - 1 below, of what is known."""
    known_P = (~np.isnan(values_PG)).sum(1, keepdims=True)
    off_PG = values_PG - _mean(values_PG)
    square_P = np.nansum(off_PG**2, axis=1, keepdims=True)
    return np.asarray(np.sqrt(square_P / np.maximum(known_P - 1, 1)))


def _mean(values_PG: Floats) -> Floats:
    """Of each line, of what is known; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values_PG, axis=1, keepdims=True))


def _normalised_then_summed(asked: Asked, paid_BF: Floats) -> Floats:
    reward_1B = _summed(asked, paid_BF)[None]
    scaled_1B = (reward_1B - _mean(reward_1B)) / (spread(reward_1B) + TINY)
    return np.asarray(np.nan_to_num(scaled_1B[0], nan=0.0))


def _summed(asked: Asked, paid_BF: Floats) -> Floats:
    """Each reward normalised in its group, then their weighted sum; NaN without any."""
    each = []
    for paid_B in paid_BF.T:
        paid_PG = paid_B.reshape(-1, asked.group)
        centred_PG = paid_PG - _mean(paid_PG)
        each.append((centred_PG / (spread(paid_PG) + TINY)).reshape(-1))
    reward_B = np.nansum(np.stack(each, 1) * weights(asked, len(each)), axis=1)
    reward_B[np.isnan(paid_BF).all(axis=1)] = np.nan
    return np.asarray(reward_B)
