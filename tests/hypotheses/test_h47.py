"""H47 seed-noise."""

import numpy as np
import pytest
from tests.traces import healthy_trace

from flatline.hypotheses.base import Level
from flatline.hypotheses.h47_seed_noise import SeedNoise
from flatline.trace import Trace

H = SeedNoise()


def curve(reward):
    return Trace.from_rows(
        steps=[{"step": i, "reward": value} for i, value in enumerate(reward, 1)]
    )


def raw(steps, *, spread=0.05, slope=0.0):
    rng = np.random.default_rng(0)
    return 0.5 + slope * np.arange(steps) / steps + spread * rng.standard_normal(steps)


def smoothed(values, keep=0.95):
    shown = [values[0]]
    for value in values[1:]:
        shown.append(keep * shown[-1] + (1 - keep) * value)
    return np.array(shown)


def test_a_run_that_could_not_have_shown_what_matters_is_noted():
    found = H.sign(healthy_trace(steps=6, prompts=2, gain=0.0))
    assert found.level is Level.NOTE
    assert "more steps" in found.text


def test_a_run_that_is_long_enough_is_told_what_it_could_have_shown():
    assert H.sign(curve(raw(300))).level is Level.OK


def test_a_reward_that_certainly_rises_needs_no_more_steps():
    assert H.sign(curve(raw(30, spread=0.2, slope=2.0))).level is Level.OK


def test_a_smoothed_curve_is_noted_and_a_raw_one_is_not():
    found = H.sign(curve(smoothed(raw(600))))
    assert found.level is Level.NOTE
    assert "smoothed" in found.text
    assert "smoothed" not in H.sign(curve(raw(600, slope=0.3))).text


def test_a_constant_curve_is_not_taken_for_a_smoothed_one():
    assert "smoothed" not in H.sign(curve(np.full(100, 0.5))).text


def test_a_few_steps_say_nothing():
    assert H.sign(healthy_trace(steps=3)).level is Level.UNKNOWN


def test_it_never_alarms():
    for seed in range(5):
        assert H.sign(healthy_trace(seed=seed, gain=0.0)).level in (Level.NOTE, Level.OK)


def test_a_curve_that_was_smoothed_beyond_recognition_is_noted_without_a_number():
    found = H.sign(curve(smoothed(raw(60), keep=0.97)))
    assert found.level is Level.NOTE
    assert "smoothed" in found.text
    assert "inf" not in found.text


def test_a_raw_curve_that_breaks_down_at_a_step_is_not_taken_for_a_smoothed_one():
    fallen = raw(200, spread=0.03) + np.where(np.arange(200) < 120, 0.6, 0.0)
    assert "smoothed" not in H.sign(curve(fallen)).text


@pytest.mark.parametrize("at", [130, 70])
def test_a_raw_curve_on_another_scale_from_one_row_on_is_judged_beside_the_jump(at):
    reward = raw(200, spread=0.03, slope=0.5) * np.where(np.arange(200) < at, 1.0, 0.2)
    found = H.sign(curve(reward))
    assert "smoothed" not in found.text
    side = f"Before step {at + 1}" if at == 130 else f"From step {at + 1} on"
    assert found.text.startswith(f"{side}, where the reward jumps: A change of 0.0"), found.text


def test_a_smoothed_curve_that_follows_a_jump_or_begins_anew_is_still_noted():
    level = np.where(np.arange(600) < 250, 0.9, 0.2)
    begun_anew = np.concatenate([smoothed(raw(300)), smoothed(raw(250) - 0.4)])
    for shown in (smoothed(raw(600) + level), begun_anew):
        assert "smoothed" in H.sign(curve(shown)).text


def test_one_row_that_stands_out_is_no_jump():
    spiked = raw(200)
    spiked[90] += 3.0
    assert "jumps" not in H.sign(curve(spiked)).text
