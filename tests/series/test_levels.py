"""How the reward goes: early rises, lost gains, the level at the end."""

import numpy as np
import pytest

from flatline.hypotheses.base import Level
from flatline.hypotheses.course import goes_on
from flatline.hypotheses.h47_seed_noise import SeedNoise
from flatline.hypotheses.trend import trend_of
from flatline.remarks.main_event import trend_told
from tests.series.made import alike, around, line, log, said


def test_a_reward_that_rises_early_and_stays_is_said_to_rise():
    level = np.minimum(0.55 + 0.42 * np.linspace(0, 4.5, 300), 0.97)
    trace = log(reward=level + 0.012 * alike(300, 0.15))
    assert trend_of(trace).rises and trend_of(trace).flat is False
    assert SeedNoise().sign(trace).level is Level.OK


@pytest.mark.parametrize(("end", "rises"), [(1.6, True), (1.0, False)])
def test_a_reward_falls_where_it_loses_most_of_its_gain(end, rises):
    levels = np.concatenate([around(0.9, 80), around(1.7, 90), around(end, 30)])
    trend = trend_of(log(reward=levels))
    assert (trend.rises, trend.falls) == (rises, not rises)


def test_a_curve_goes_on_until_it_has_levelled_off():
    level = around(np.minimum(np.linspace(0.2, 1.4, 200), 0.6), 200)
    assert not goes_on(level, level[120:])
    rising = line(0.2, 1.4, 200)
    assert goes_on(rising, rising[120:])


def test_a_last_level_is_one_that_all_rows_since_then_show():
    stays = np.interp(np.arange(200), [0, 40, 199], [0.3, 0.6, 0.6])
    assert "Since step" in trend_told(log(reward=around(stays, 200, 0.06))).text
    climbs = np.interp(np.arange(300), [0, 60, 120, 299], [0.2, 0.3, 0.34, 0.34])
    since = trend_of(log(reward=around(climbs, 300))).text.partition("Since step ")[2].split()
    assert not since or int(since[0]) > 90


def test_only_a_reward_at_its_ceiling_has_little_left_to_gain():
    for top, told in ((1.0, True), (0.6, False)):
        level = np.interp(np.arange(120), [0, 40, 119], [0.2, top, top])
        reward = np.minimum(around(level, 120, 0.01), 1)
        assert ("little left to gain" in said(log(reward=reward))) is told
