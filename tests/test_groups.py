"""Helpers for rewards by group: their intervals cover, and count groups."""

import numpy as np
import pytest

from flatline.hypotheses.groups import (
    mean_of,
    prompts_of,
    reward_groups,
    within_correlation,
)
from tests.traces import trace_of


@pytest.mark.parametrize("groups", [12, 60])
@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_the_correlation_inside_groups_covers_the_truth_about_95_times_in_100(groups, strength):
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), 8)
    truth = strength / np.sqrt(strength**2 + 1)
    hits = []
    for _ in range(300):
        level = rng.normal(0, 5, groups)[group]
        a = rng.normal(size=len(group))
        b = strength * a + rng.normal(size=len(group))
        got = within_correlation(a + level, b - level, group)
        hits.append(got.low <= truth <= got.high)
    assert 0.9 <= np.mean(hits) <= 1.0


def test_what_does_not_vary_inside_groups_has_no_correlation():
    assert within_correlation(np.ones(8), np.arange(8.0), np.zeros(8)).n == 0
    assert within_correlation(np.full(8, np.nan), np.arange(8.0), np.zeros(8)).n == 0


def test_a_correlation_of_few_groups_is_not_known():
    group = np.repeat(np.arange(3), 8)
    assert within_correlation(np.arange(24.0), np.arange(24.0), group).low == -np.inf


def test_groups_of_one_and_missing_rewards_are_left_out():
    found = reward_groups(trace_of([[1.0], [0.0, np.nan, 1.0], [np.nan, np.nan]]))
    assert found.n == 1
    assert found.rewards[0].tolist() == [0.0, 1.0]


def test_prompts_without_an_id_are_told_apart():
    assert len(set(prompts_of(trace_of([[0.0, 1.0]] * 3, prompt_id=[None] * 6)))) == 3


def test_a_mean_leaves_out_what_is_no_number():
    assert mean_of(np.array([1.0, np.nan, 3.0])).value == 2.0
    assert mean_of(np.array([np.nan])).n == 0
