"""Advantages that a right trainer computes in float32 never depart, whatever is paid."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatline.live.departure.advantages import judge_advantages
from flatline.spec.advantages import advantages, beyond_rounding
from flatline.spec.numerics import ADVANTAGE_HERE
from tests.test_spec import ASKED

PAID = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.1, 1.2, 0.7, 100.0, 1 / 3, 5.0, -0.25, float("nan")]),
    st.floats(-100, 100, width=32),
)


@st.composite
def paid(draw):
    """Groups, of which many are paid alike, by one to three functions."""
    group, functions = draw(st.sampled_from([2, 4, 8, 16])), draw(st.integers(1, 3))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        few = draw(st.lists(st.lists(PAID, min_size=functions, max_size=functions), min_size=1))
        which = draw(st.lists(st.integers(0, len(few) - 1), min_size=group, max_size=group))
        rows += [few[k] for k in which]
    weights = draw(st.lists(st.sampled_from([1.0, 0.1, 0.3, 2.0]), min_size=functions))
    return group, tuple(weights[:functions]), torch.tensor(rows, dtype=torch.float32)


def nanstd(values, dim):
    """With n - 1 below, and NaN where fewer than two are known."""
    known = (~values.isnan()).sum(dim, keepdim=True)
    off = values - values.nanmean(dim, keepdim=True)
    return ((off**2).nansum(dim, keepdim=True) / (known - 1)).sqrt()


def in_float32(asked, paid_BF):
    """As trainers do it."""
    weights_F = torch.tensor(asked.reward_weights)
    if asked.aggregation == "normalize_then_sum":
        paid_PGF = paid_BF.view(-1, asked.group, paid_BF.shape[1])
        off_PGF = paid_PGF - paid_PGF.nanmean(1, keepdim=True)
        each_BF = (off_PGF / (nanstd(paid_PGF, 1) + 1e-4)).view(paid_BF.shape)
        reward_B = (each_BF * weights_F).nansum(1)
        return (reward_B - reward_B.mean()) / (reward_B.std() + 1e-4)
    reward_B = (paid_BF * weights_F).nansum(1)
    reward_PG = reward_B.view(-1, asked.group)
    off_B = reward_B - reward_PG.mean(1).repeat_interleave(asked.group)
    if asked.scale == "none":
        return off_B
    spread = reward_PG.std(1).repeat_interleave(asked.group)
    return off_B / ((spread if asked.scale == "group" else reward_B.std()) + 1e-4)


@settings(max_examples=200, deadline=None)
@given(paid(), st.sampled_from(["group", "batch", "none", "each"]))
def test_a_right_trainer_is_never_said_to_depart(given_paid, scale):
    group, weights, paid_BF = given_paid
    paid_BF[paid_BF.isnan().all(1)] = 0.0  # rows without any reward are another matter
    asked = replace(ASKED, group=group, reward_weights=weights)
    asked = (
        replace(asked, aggregation="normalize_then_sum")
        if scale == "each"
        else replace(asked, scale=scale)
    )
    if scale == "each":
        paid_BF = paid_BF.nan_to_num()
    found_B = in_float32(asked, paid_BF)
    assert not judge_advantages(asked, paid_BF, found_B, limit=ADVANTAGE_HERE).departs


@given(st.sampled_from([0.0, 1.0, 1.2, 100.0]), st.sampled_from([4, 8, 16]))
def test_a_tenth_too_much_is_beyond_rounding_wherever_a_group_differs(base, group):
    reward_B = np.float32(base) + np.arange(group, dtype=np.float32) % 2
    asked = replace(ASKED, group=group, reward_weights=(1.0,))
    expected_B = advantages(asked, reward_B[:, None])
    off_B = beyond_rounding(asked, reward_B[:, None], 1.1 * expected_B, expected_B)
    assert off_B.min() > ADVANTAGE_HERE
