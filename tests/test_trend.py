"""The trend of the reward: raw, by group, and silent where it cannot tell."""

import json
import warnings

import numpy as np
import pytest

from flatline.hypotheses.trend import FEWEST, rescaled_at, too_short, trend_of
from flatline.stats import difference_of_means
from flatline.trace import Trace
from tests.traces import healthy_trace, rollout_rows, run_facts


def run(rewards_by_step):
    rows = [
        row
        for step, rewards in enumerate(rewards_by_step, start=1)
        for row in rollout_rows(rewards, step=step)
    ]
    return trend_of(Trace.from_rows(run=run_facts(), rollouts=rows))


def noise(mean_of_step, steps=30, prompts=8, generations=8, seed=0):
    """Rewards of 0 and 1 whose prompts differ in difficulty."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(steps):
        chance = np.clip(mean_of_step(step) + rng.normal(0, 0.15, prompts), 0, 1)
        found.append((rng.random((prompts, generations)) < chance[:, None]).astype(float).tolist())
    return run(found)


def logged(rewards, apart=1):
    steps = [{"step": apart * at, "reward": float(one)} for at, one in enumerate(rewards, 1)]
    return trend_of(Trace.from_rows(run={"source": "import:jsonl"}, steps=steps))


def smoothed(values, keep=0.9):
    shown = [values[0]]
    for value in values[1:]:
        shown.append(keep * shown[-1] + (1 - keep) * value)
    return shown


def levels(*each, by=0.05):
    """Rows at a level, then at another."""
    made = np.concatenate([np.full(rows, level) for rows, level in each])
    return made + np.random.default_rng(0).normal(0, by, len(made))


WAVE = np.tile([0.12, -0.12, 0.04, -0.04], 6)
COURSES = {
    "learns": (lambda: trend_of(healthy_trace(steps=20)), False, "rises"),
    "unlearns": (lambda: noise(lambda step: 0.8 - 0.02 * step), False, "falls"),
    "rises, then falls": (
        lambda: noise(lambda step: (0.1, 0.9, 0.5)[step // 10]), False, "rises, then falls: "),
    "ends at nothing however smoothly": (
        lambda: logged(np.maximum(0, 0.77 - 0.03 * np.arange(40))), None, "falls to nothing"),
    "stands for long": (lambda: noise(lambda step: 0.5, steps=300), True, "flat"),
    "stands for a few steps": (
        lambda: noise(lambda step: 0.5, steps=9, prompts=2), None, "more steps would settle it"),
    "steps alone": (lambda: logged(0.1 * np.arange(12)), False, "rises"),
    "missing rewards": (lambda: run([[[np.nan, 0.5], [0.5, 0.5]]] * 6), True, "the same, 0.5"),
    "constant thirds of few groups": (
        lambda: run([[[0.0, 0.0]]] * 3 + [[[1.0, 1.0]]] * 3), None, "too few"),
    "smoothed beyond recognition": (
        lambda: logged(smoothed(levels((60, 0.5)), keep=0.97)), None, "smoothed"),
    "undone in the end": (
        lambda: logged(levels((30, 0.3), (40, 0.7), (30, 0.3))), False,
        "0.294 up to step 30, 0.712 up to step 70"),
    "over since": (
        lambda: logged(levels((30, 0.3), (70, 0.7))), False, "Since step 31 it is about 0.7"),
    "next to nothing": (
        lambda: logged(0.175 + np.linspace(0, 0.001, 60) + levels((60, 0), by=1e-4)), True,
        "hardly rises"),
    "may fall": (lambda: logged(0.5 - 0.006 * np.arange(24) + WAVE), True, "does not rise"),
    "rows of several steps": (
        lambda: logged(levels((30, 0.5), by=0.3), apart=5), None, "30 rows 5 steps apart"),
    "another scale": (
        lambda: logged((0.5 + 0.05 * np.tile([1, -1], 30)) * np.repeat([1.0, 100.0], 30)), None,
        "Since step 31 the reward is on another scale"),
}  # fmt: skip
RISES = {"learns", "steps alone", "over since"}
FALLS = {"unlearns", "rises, then falls", "undone in the end", "ends at nothing however smoothly"}


@pytest.mark.parametrize("course", COURSES)
def test_a_course_is_known(course):
    made, flat, told = COURSES[course]
    trend = made()
    assert told in trend.text
    assert (None if trend.flat is None else bool(trend.flat)) is flat
    assert trend.rises is (course in RISES)
    assert trend.falls is (course in FALLS)


def test_a_rise_that_is_undone_is_certain_though_both_ends_are_alike():
    trend = COURSES["undone in the end"][0]()
    assert trend.change.low < 0 < trend.change.high, "the thirds hide it"
    assert trend.more is None, "no number of steps beside a change that is certain"


def test_a_single_bad_step_is_no_fall_to_nothing_and_no_new_level():
    assert not logged([0.5] * 39 + [0.0]).gone
    rewards = 0.14 + 0.002 * np.random.default_rng(0).standard_normal(40)
    rewards[37] = 0.21
    assert "up to step" not in logged(rewards).text


def test_a_still_run_is_said_to_move_about_once_in_twenty():
    moved = [noise(lambda step: 0.5, seed=seed).flat is False for seed in range(60)]
    assert np.mean(moved) <= 0.15


@pytest.mark.parametrize(
    ("trend", "n"),
    [
        (lambda: noise(lambda step: 0.5, steps=9, prompts=4, generations=16), 12),  # groups
        (COURSES["missing rewards"][0], 4),
        (COURSES["steps alone"][0], 4),
    ],
)
def test_groups_count_and_rollouts_do_not(trend, n):
    assert trend().change.n == n


def test_rollouts_of_unequal_groups_weigh_by_group():
    trend = run([[[0.0] * 8, [1.0]]] * 3 + [[[0.5] * 4] * 2] * 3)
    assert trend.change.value == pytest.approx(0.0)


def test_a_smoothed_log_of_noise_is_not_said_to_move():
    rng = np.random.default_rng(0)
    curves = [rng.normal(0.5, 0.06, 100) for _ in range(60)]
    assert np.mean([logged(smoothed(curve)).flat is False for curve in curves]) <= 0.12
    assert np.mean([logged(curve).flat is False for curve in curves]) <= 0.12


def test_a_rise_is_seen_in_a_raw_log_and_in_a_long_smoothed_one():
    rng = np.random.default_rng(0)
    short = np.linspace(0, 0.4, 20) + rng.normal(0, 0.05, 20)
    curved = 0.4 * (1 - np.exp(-np.arange(60) / 8)) + rng.normal(0, 0.05, 60)
    long = smoothed(np.linspace(0, 0.6, 1000) + rng.normal(0, 0.05, 1000))
    assert all(logged(curve).change.low > 0 for curve in (short, curved, long))


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9])
def test_noise_has_no_level_that_changes(keep):
    rng = np.random.default_rng(1)
    curves = [smoothed(rng.normal(0.5, 0.06, 80), keep=keep) for _ in range(100)]
    told = [logged(curve).text for curve in curves]
    assert sum("up to step" in text or "Since step" in text for text in told) <= 3


def test_a_reward_that_is_learnt_is_on_one_scale():
    reward = 1 / (1 + np.exp(-(np.arange(60) - 30) / 2))
    assert rescaled_at(reward, np.arange(60.0)) is None


def test_too_few_steps_and_no_reward_have_no_trend():
    assert trend_of(healthy_trace(steps=FEWEST - 1)) is None
    assert trend_of(Trace.from_rows(run=run_facts())) is None
    assert run([[[np.nan, np.nan]]] * 9) is None


def test_too_few_steps_say_how_many_would_do():
    trace = Trace.from_rows(steps=[{"step": s, "reward": 0.5} for s in range(1, 6)])
    assert too_short(trace).startswith("5 steps with a reward are too few")
    assert too_short(Trace.from_rows(steps=[{"step": s, "reward": 0.5} for s in range(9)])) is None
    assert too_short(Trace.from_rows(steps=[{"step": 1, "kl": 0.5}])) is None


def test_the_trend_as_json_has_no_infinity():
    trend = noise(lambda step: 0.5, steps=6, prompts=1)
    shape = json.loads(json.dumps(trend.to_json(), allow_nan=False))
    assert shape.keys() == {"change", "flat", "text"}


@pytest.mark.parametrize("sizes", [(8, 8), (4, 40)])
def test_the_difference_of_means_covers_the_truth_95_times_in_100(sizes):
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(600):
        got = difference_of_means(rng.normal(0, 1, sizes[0]), rng.normal(1, 3, sizes[1]))
        hits.append(got.low <= 1 <= got.high)
    assert 0.92 <= np.mean(hits) <= 0.98


def test_a_difference_of_nothing_is_unknown_and_of_one_value_has_no_interval():
    assert difference_of_means([], [1.0]).n == 0
    assert difference_of_means([1.0], [2.0, 3.0]).low == -np.inf


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1e-200, 1e200])
def test_equal_constants_leave_open_how_far_others_are_off_unless_it_is_known(value):
    assert difference_of_means([value] * 4, [value] * 4)[:3] == (0.0, -np.inf, np.inf)
    known = difference_of_means([value] * 4, [value] * 4, unseen=value + 0.1)
    assert known.low < 0 < known.high < np.inf


@pytest.mark.parametrize("last_bit", [0.0, 1e-17, 1e-9])
def test_unequal_constants_need_numbers_whatever_their_last_bit(last_bit):
    for low, high in ((0.0, 1.0), (0.3, 0.7), (0.1, 0.2)):
        few = difference_of_means([low] * 3, [high] * 2 + [high + last_bit])
        assert few.low < 0 < few.high
        assert few.high - few.low == pytest.approx(1.24 * 2 * (high - low), rel=0.1)
    assert difference_of_means([0.0] * 50, [1.0] * 50).low > 0.8


def test_the_interval_of_a_difference_has_no_cliff_where_values_come_to_be_equal():
    noise = np.array([-1.0, 0.0, 1.0])
    sizes = np.geomspace(1e-8, 1e-5, 200)
    ends = [difference_of_means(0.3 + size * noise, 0.7 + size * noise).low for size in sizes]
    assert max(np.abs(np.diff(ends))) < 0.1 * (max(ends) - min(ends))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200, 1e308])
def test_a_difference_of_what_is_no_number_has_no_interval_and_no_warning(bad):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = difference_of_means([1.0, 2.0, bad], [1.0, 2.0, 3.0])
    assert (got.low, got.high) in {(-np.inf, np.inf)} or np.isnan(got.low)
