"""H63: the gap of sampler and trainer grows with the steps."""

import numpy as np
import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts

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


def test_a_gap_that_grows_from_what_is_usual_to_what_is_not_is_suspected():
    finding = judged(noisy(np.geomspace(3e-3, 0.03, STEPS)))
    assert finding.level is Level.SUSPECT
    assert "from 0.00" in finding.text


def test_a_gap_that_has_grown_within_the_first_third_of_a_long_run_is_suspected():
    finding = judged(noisy(np.minimum(3e-3 * 1.12 ** np.arange(40), 0.045)))
    assert finding.level is Level.SUSPECT
    assert "from 0.0061 to 0.045" in finding.text and "It began at 0.0037" in finding.text


@pytest.mark.parametrize("gaps", [4e-3, 6e-3, 0.02])
def test_a_gap_that_does_not_grow_is_no_alarm_whatever_its_first_steps_are(gaps):
    for seed in range(40):
        assert judged(noisy(np.full(40, gaps), seed)).level is Level.OK


def test_a_healthy_run_does_not_alarm():
    assert H63.sign(healthy_trace(steps=STEPS)).level is Level.OK


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


def test_sides_that_agree_until_the_first_update_part_for_another_reason():
    gaps = np.concatenate([[1e-6], np.geomspace(1e-3, 0.1, STEPS - 1)])
    finding = judged(gaps)
    assert finding.level is Level.UNKNOWN and "H06" in finding.text


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


def test_few_steps_say_nothing():
    assert judged(np.geomspace(3e-3, 0.1, 4)).level is Level.UNKNOWN


def test_one_bad_step_is_no_growth():
    gaps = np.full(STEPS, 4e-3)
    gaps[-2] = 1.0
    assert judged(gaps).level is Level.OK
