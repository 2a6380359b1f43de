"""Intervals: they cover, they never vanish, and they count problems."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatline.stats import (
    UNKNOWN,
    Estimate,
    cluster_mean,
    mean_of_units,
    p_values,
    paired_difference,
    pass_at_k,
    sequential_level,
    spread_of_units,
    t_score,
)
from flatline.tails import students

REPEATS = 600


def coverage(make, truth):
    estimates = [make() for _ in range(REPEATS)]
    return np.mean([e.low <= truth <= e.high for e in estimates])


@pytest.mark.parametrize("n", [30, 64, 256])
@pytest.mark.parametrize("rate", [0.5, 0.95])
def test_intervals_of_one_play_a_problem_cover_the_truth_95_times_in_100(n, rate):
    rng = np.random.default_rng(n)
    got = coverage(lambda: cluster_mean(rng.random(n) < rate, np.arange(n)), rate)
    # Three standard errors of the simulation below, and what the few possible counts allow above.
    assert 0.92 <= got <= 0.99


@pytest.mark.parametrize("n", [30, 64, 256])
@pytest.mark.parametrize("rate", [0.5, 0.95])
def test_intervals_of_eight_plays_a_problem_cover_although_plays_are_alike(n, rate):
    rng = np.random.default_rng(n)

    def make():
        solve_rate_P = rng.beta(2 * rate, 2 * (1 - rate), n)
        right_PG = rng.random((n, 8)) < solve_rate_P[:, None]
        return cluster_mean(right_PG.ravel(), np.repeat(np.arange(n), 8))

    assert 0.91 <= coverage(make, rate) <= 0.99


def test_treating_plays_as_independent_would_not_cover():
    rng = np.random.default_rng(0)

    def make():
        right_PG = rng.random((64, 8)) < rng.beta(0.2, 0.2, 64)[:, None]
        return cluster_mean(right_PG.ravel(), np.arange(64 * 8))

    assert coverage(make, 0.5) < 0.7


@pytest.mark.parametrize("n", [30, 256])
@pytest.mark.parametrize("better", [0.05, 0.3])
def test_paired_intervals_cover_a_rare_and_a_common_difference(n, better):
    rng = np.random.default_rng(n)

    def make():
        return paired_difference(np.zeros(n), rng.random(n) < better, np.arange(n))

    assert coverage(make, better) >= 0.92


@pytest.mark.parametrize("constant", [0.0, 0.5, 1.0])
def test_constant_values_keep_a_width_that_shrinks_with_n(constant):
    few, many = (cluster_mean(np.full(n, constant), np.arange(n)) for n in (30, 300))
    assert few.value == many.value == constant
    assert 0.005 < many.high - many.low < few.high - few.low < 0.2


def test_n_counts_clusters_and_repeating_plays_adds_no_certainty():
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0] * 8)
    once = cluster_mean(values, np.arange(40))
    thrice = cluster_mean(np.repeat(values, 3), np.repeat(np.arange(40), 3))
    assert once.n == thrice.n == 40
    assert once == pytest.approx(thrice)


def test_every_value_weighs_the_same_in_uneven_clusters():
    assert cluster_mean([1, 1, 1, 0], ["a", "a", "a", "b"]).value == 0.75


def test_one_cluster_and_no_values_leave_everything_open():
    alone = cluster_mean([1.0, 0.0], ["a", "a"])
    assert (alone.value, alone.low, alone.high, alone.n) == (0.5, -math.inf, math.inf, 1)
    assert cluster_mean([], []) is UNKNOWN


def test_an_open_end_is_null_in_json():
    assert json.loads(json.dumps(UNKNOWN.to_json())) == {
        "value": None,
        "low": None,
        "high": None,
        "n": 0,
    }
    assert Estimate(0.5, 0.25, 0.75, 3).to_json() == {
        "value": 0.5,
        "low": 0.25,
        "high": 0.75,
        "n": 3,
    }


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=40),
    st.integers(2, 10),
)
def test_the_mean_lies_in_its_interval_and_the_interval_in_its_bounds(values, n_clusters):
    got = cluster_mean(values, [i % n_clusters for i in range(len(values))])
    assert 0 <= got.low <= got.value <= got.high <= 1


def test_values_outside_their_bounds_are_refused():
    with pytest.raises(ValueError, match="between 0"):
        cluster_mean([0.5, 1.5], [0, 1])
    with pytest.raises(ValueError, match="between 0"):
        cluster_mean([0.5, math.nan], [0, 1])
    assert cluster_mean([0.5, 1.5], [0, 1], bounds=(0, 2)).value == 1.0


def test_mismatched_lengths_are_refused():
    with pytest.raises(ValueError, match="one cluster per value"):
        cluster_mean([0.5, 0.5], [0])
    with pytest.raises(ValueError, match="must match"):
        paired_difference([0.5], [0.5, 0.5], [0])


def test_pass_at_k_equals_counting_every_choice_of_k_plays():
    from itertools import combinations

    plays = [1, 0, 0, 1, 0, 0]
    by_hand = np.mean([max(chosen) for chosen in combinations(plays, 3)])
    assert pass_at_k([2, 2], 6, 3).value == pytest.approx(by_hand)


def test_pass_at_1_is_the_mean_and_pass_at_n_is_ever_right():
    assert pass_at_k([0, 2, 4], 4, 1).value == pytest.approx(0.5)
    assert pass_at_k([0, 2, 4], 4, 4).value == pytest.approx(2 / 3)


def test_pass_at_k_of_a_thousand_plays_does_not_overflow():
    assert 0 < pass_at_k([1, 500, 999], 1000, 500).value < 1


@pytest.mark.parametrize(("counts", "k"), [([1], 0), ([1], 5), ([5], 2), ([-1], 2)])
def test_impossible_counts_are_refused(counts, k):
    with pytest.raises(ValueError):
        pass_at_k(counts, 4, k)


@pytest.mark.parametrize(("n", "level"), [(2, 0.95), (3, 0.98), (6, 0.95)])
def test_means_of_a_few_seeds_cover_the_truth_as_often_as_asked(n, level):
    rng = np.random.default_rng(n)
    got = [mean_of_units(rng.normal(0.1, 0.05, n).tolist(), level=level) for _ in range(4000)]
    assert np.mean([e.low <= 0.1 <= e.high for e in got]) == pytest.approx(level, abs=0.015)


def test_a_mean_of_seeds_is_students():
    values = [0.1, 0.3, 0.2, 0.25]
    # scipy.stats.ttest_1samp(values, 0).confidence_interval(0.99)
    by_scipy = (-0.03688129218863645, 0.4618812921886365)
    assert mean_of_units(values, level=0.99)[1:3] == pytest.approx(by_scipy)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 8, 19])
def test_p_values_are_students(freedom):
    t = np.array([0.0, 0.3, 1.0, 2.5, 12.0, 300.0])
    each = [students(one, freedom) for one in t.tolist()]
    assert p_values(t, freedom) == pytest.approx(each, abs=1e-11)


def test_one_seed_and_none_leave_everything_open():
    assert mean_of_units([0.5]) == (0.5, -math.inf, math.inf, 1)
    assert mean_of_units([]) is UNKNOWN


def test_equal_seeds_keep_a_spread():
    assert spread_of_units([0.4, 0.4, 0.4]) == pytest.approx(np.std([0.4, 0.4, 0.4, 0], ddof=1))
    assert spread_of_units([0.0] * 3, unseen=0.2) == pytest.approx(np.std([0, 0, 0, 0.2], ddof=1))
    assert spread_of_units([0.3 - 0.2, 0.1]) == pytest.approx(spread_of_units([0.1, 0.1]))


def test_zeros_are_known_to_rounding_or_to_what_was_never_seen():
    assert 0 < mean_of_units([0.0] * 5).high < 1e-6
    assert 0.01 < mean_of_units([0.0] * 5, unseen=0.1).high < 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_mean_with_what_is_no_number_is_unknown(bad):
    got = mean_of_units([0.1, bad, -math.inf])
    assert math.isnan(got.value) and (got.low, got.high, got.n) == (-math.inf, math.inf, 3)


@pytest.mark.parametrize("size", [5e-324, 1e308])
def test_the_mean_of_the_smallest_and_the_largest_numbers_is_no_crash(size):
    assert mean_of_units([size] * 4).value == pytest.approx(size)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_a_spread_does_not_overflow_and_does_not_vanish(size):
    assert spread_of_units([size, 3 * size]) == pytest.approx(size * 2**0.5)


def test_one_look_has_the_whole_error_rate():
    assert sequential_level((5,), 0.05) == 0.05


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 8, 1e-4])
@pytest.mark.parametrize("looks", [(2, 3), (3, 4, 5, 6), (3, 6, 12, 24)])
def test_the_level_of_a_look_lies_between_bonferroni_and_alpha(looks, alpha):
    assert alpha / len(looks) <= sequential_level(looks, alpha) < alpha


def test_looks_far_apart_approach_the_levels_that_pocock_published():
    # Two and five looks after equal, large groups: 0.0294 and 0.0158 (Pocock 1977).
    assert sequential_level((50, 100), 0.05) == pytest.approx(0.0294, abs=0.001)
    assert sequential_level((30, 60, 90, 120, 150), 0.05) == pytest.approx(0.0158, abs=0.001)


def test_looking_at_every_look_keeps_the_error_rate():
    looks, alpha = (3, 4, 5, 6), 0.05
    level = sequential_level(looks, alpha)
    rng = np.random.default_rng(1)
    wrong = 0
    for row in rng.normal(0, 1, (10_000, 6)).tolist():
        seen = [mean_of_units(row[:n], level=1 - level) for n in looks]
        wrong += any(not e.low <= 0 <= e.high for e in seen)
    assert wrong / 10_000 == pytest.approx(alpha, abs=0.009)


def test_a_quantile_that_numpy_asked_for_first_is_a_plain_number():
    t_score.cache_clear()
    assert type(t_score(np.float64(5), 0.95)) is float
    assert type(t_score(5, 0.95)) is float
    t_score.cache_clear()
