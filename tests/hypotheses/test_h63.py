"""H63: the gap of sampler and trainer grows with the steps."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h63_growing_mismatch import GrowingMismatch
from flatline.trace import Trace

H63 = GrowingMismatch()
STEPS = 18


def noisy(values, seed=0):
    """As steps of a run show it: each mean is over other rollouts."""
    return values * np.exp(np.random.default_rng(seed).normal(0, 0.2, len(values)))


def judged(gaps, *, rollouts=True, **settings):
    rows = healthy_rows(steps=len(gaps))
    taken = [row for row in rows["steps"] if row["step"] > 0]
    for row, gap in zip(taken, gaps, strict=True):
        row["logprob_gap"] = float(gap)
    if not rollouts:
        rows = {"steps": rows["steps"]}
    return H63.sign(Trace.from_rows(run=run_facts(**settings), **rows))


@pytest.mark.parametrize("gaps", [4e-3, 6e-3, 0.02])
def test_a_gap_that_does_not_grow_is_no_alarm_whatever_its_first_steps_are(gaps):
    for seed in range(8):
        assert judged(noisy(np.full(40, gaps), seed)).level is Level.OK


@pytest.mark.parametrize(
    ("gaps", "settings"),
    [
        (np.full(STEPS, 4e-3), {}),  # other digits, and always as many
        (np.full(STEPS, 0.3), {}),  # H20's, from the start
        (np.geomspace(2e-4, 3e-3, STEPS), {}),  # grows, and is still what rounding may be
        (np.geomspace(0.01, 0.04, STEPS), {"bf16": True}),
        (np.geomspace(4e-3, 7e-3, STEPS), {}),  # above the limit, but less than doubled
    ],
)
def test_gaps_that_stay_or_stay_small_are_fine(gaps, settings):
    assert judged(noisy(gaps), **settings).level is Level.OK


def test_a_smoothed_log_is_not_judged():
    raw = noisy(np.geomspace(3e-3, 0.03, 60), seed=1)
    smooth = np.convolve(raw, np.ones(12) / 12, "valid")
    assert judged(smooth, rollouts=False).level is Level.UNKNOWN
    assert judged(raw, rollouts=False).level is Level.SUSPECT


def test_later_passes_over_the_same_completions_do_not_count():
    rows = healthy_rows(steps=2 * STEPS)
    rows["rollouts"] = [row for row in rows["rollouts"] if row["step"] % 2]
    rows["tokens"] = [row for row in rows["tokens"] if row["step"] % 2]
    for row, gap in zip(rows["steps"], noisy(np.full(2 * STEPS + 1, 3e-3)), strict=True):
        row["logprob_gap"] = gap if row["step"] % 2 else gap * row["step"]
    assert H63.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK


def test_one_bad_step_is_no_growth():
    gaps = np.full(STEPS, 4e-3)
    gaps[-2] = 1.0
    assert judged(gaps).level is Level.OK


ROWS = 120


def log_of(name, gap, reward):
    """A log that has something of the gap under another tool's name."""
    rng = np.random.default_rng(1)
    rows = [
        {"step": at + 1, "reward": float(reward[at] + rng.normal(0, 0.02)), "metrics": {name: gap}}
        for at, gap in enumerate(gap.tolist())
    ]
    return Trace.from_rows(run={"source": "import:verl", "settings": {}}, steps=rows)


def parting(since):
    """Small until a step, then more and more."""
    return noisy(0.004 * np.exp(0.05 * np.maximum(np.arange(ROWS) - since, 0.0)))


BREAKS = np.interp(np.arange(ROWS), [0, 70, 100, ROWS], [0.3, 0.5, 0.05, 0.05])
MEANS = (
    "training/rollout_probs_diff_mean",
    "mismatch/rollout_actor_prob_abs_diff",
    "mismatch/vllm_logprobs_abs_diff_mean",
    "rollout_corr/k3_kl",
)
ONES = (
    "training/rollout_actor_probs_pearson_corr",
    "sampling/importance_sampling_ratio/mean",
    "rollout_corr/rollout_is_mean",
    "train/tis",
)


@pytest.mark.parametrize("name", MEANS + ONES)
def test_a_gap_that_a_log_tells_in_other_words_is_suspected_where_it_grows_first(name):
    gap = parting(30)
    found = H63.sign(log_of(name, 1 - gap if name in ONES else gap, BREAKS))
    assert found.level is Level.SUSPECT
    assert "H43" in found.explains, "what breaks after that is what came of it"


@pytest.mark.parametrize("name", MEANS + ONES)
def test_a_gap_in_other_words_that_stays_is_fine(name):
    gap = noisy(np.full(ROWS, 0.004))
    assert H63.sign(log_of(name, 1 - gap if name in ONES else gap, BREAKS)).level is Level.OK


@pytest.mark.parametrize("name", [
    "training/rollout_probs_diff_max",
    "training/rollout_probs_diff_std",
    "training/rollout_probs_diff_valid",
    "actor/ratio/mean", "reward_probs_diff_mean", "unmasked_mismatch_kl",
])  # fmt: skip
def test_a_column_that_is_no_mean_of_both_sides_is_not_read(name):
    with pytest.raises(NotRecorded):
        H63.sign(log_of(name, parting(30), BREAKS))


test_levels = levels_of(None, {
    "a gap that grows from what is usual to what is not": ("suspect",
        lambda: judged(noisy(np.geomspace(0.003, 0.03, STEPS)))),
    "a gap that has grown within the first third of a long run": ("suspect",
        lambda: judged(noisy(np.minimum(0.003 * 1.12 ** np.arange(40), 0.045)))),
    "few steps": ("unknown", lambda: judged(np.geomspace(0.003, 0.1, 4))),
    "sides that agree until the first update part for another reason": ("unknown",
        lambda: judged(np.concatenate([[1e-6], np.geomspace(0.001, 0.1, STEPS - 1)]))),
})  # fmt: skip


test_levels_of_the_sign = levels_of(H63.sign, {
    "a gap that grows after the reward fell is what came of it": ("unknown",
        lambda: log_of(MEANS[0], noisy(np.where(np.arange(ROWS) < 78, 0.004, 0.1)), BREAKS)),
})  # fmt: skip
