"""H47 seed-noise."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
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


def test_a_smoothed_curve_is_noted_and_a_raw_one_is_not():
    assert H.sign(curve(smoothed(raw(600)))).level is Level.NOTE
    assert "smoothed" not in H.sign(curve(raw(600, slope=0.3))).text


def test_a_curve_that_was_smoothed_beyond_recognition_is_noted_without_a_number():
    found = H.sign(curve(smoothed(raw(60), keep=0.97)))
    assert found.level is Level.NOTE
    assert "inf" not in found.text


def test_a_raw_curve_that_breaks_down_at_a_step_is_not_taken_for_a_smoothed_one():
    fallen = raw(200, spread=0.03) + np.where(np.arange(200) < 120, 0.6, 0.0)
    assert "smoothed" not in H.sign(curve(fallen)).text


@pytest.mark.parametrize("at", [130, 70])
def test_a_raw_curve_on_another_scale_from_one_row_on_is_judged_beside_the_jump(at):
    reward = raw(200, spread=0.03, slope=0.5) * np.where(np.arange(200) < at, 1.0, 0.2)
    assert "smoothed" not in H.sign(curve(reward)).text


def test_a_smoothed_curve_that_follows_a_jump_or_begins_anew_is_still_noted():
    level = np.where(np.arange(600) < 250, 0.9, 0.2)
    begun_anew = np.concatenate([smoothed(raw(300)), smoothed(raw(250) - 0.4)])
    for shown in (smoothed(raw(600) + level), begun_anew):
        assert "smoothed" in H.sign(curve(shown)).text


def test_one_row_that_stands_out_is_no_jump():
    spiked = raw(200)
    spiked[90] += 3.0
    assert "jumps" not in H.sign(curve(spiked)).text


test_levels_of_the_sign = levels_of(H.sign, {
    "a run that could not have shown what matters": ("note",
        lambda: healthy_trace(steps=6, prompts=2, gain=0.0)),
    "a run that is long enough is told what it could have shown": ("ok", lambda: curve(raw(300))),
    "a reward that certainly rises needs no more steps": ("ok",
        lambda: curve(raw(30, spread=0.2, slope=2.0))),
})  # fmt: skip
