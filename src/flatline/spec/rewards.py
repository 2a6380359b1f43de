"""What a completion earned: the weighted sum of what each function paid for it.

    r_i = sum_f  w_f * r_if

A function that pays nothing for a row (None) is left out of its sum; a row that no function pays
has no reward, NaN.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatline.spec.asked import Asked

Floats = NDArray[np.float64]


def weights(asked: Asked, functions: int) -> Floats:
    """One for each function."""
    return np.array(asked.reward_weights or [1.0] * functions, dtype=np.float64)


def total(asked: Asked, paid_BF: ArrayLike) -> Floats:
    """The reward of each row."""
    paid_BF = np.asarray(paid_BF, dtype=np.float64)
    total_B = np.nansum(paid_BF * weights(asked, paid_BF.shape[1]), axis=1)
    return np.where(np.isnan(paid_BF).all(axis=1), np.nan, total_B)
