"""Causes that the columns of a log show, and what only resembles them: level by hypothesis."""

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Level
from flatline.hypotheses.h47_seed_noise import SeedNoise
from tests.series.made import alike, around, line, log

FINE, NOTE, SUSPECT, UNKNOWN = Level.OK, Level.NOTE, Level.SUSPECT, Level.UNKNOWN
ROWS = 200
T = np.arange(ROWS)


def drifting(first, last, by=1.0):
    kl = line(0.1, 50.0, 120, 0.05).clip(0.08) * by
    return log(reward=line(first, last, 120), kl=kl, completion_length=around(300.0, 120, 5.0))


def cut_off(skill):
    """Completions that run into a limit more and more, where what is cut earns nothing."""
    cut = around(np.interp(T, [0, 80, 199], [0, 0.02, 0.35]), ROWS).clip(0, 1)
    reward = around(np.interp(T, [0, 80, 199], skill) * (1 - cut), ROWS)
    return log(reward=reward, truncated_share=cut, completion_length=line(400, 2000, ROWS, 20))


def apart(*reward):
    """Sampler and trainer."""
    kl = 0.001 * np.exp(np.linspace(0, np.log(50), 150)) * np.exp(around(0, 150, 0.1))
    lag = line(1, 7, 150, 0.4)
    level = np.interp(np.arange(150), [0, 100, 149], reward)
    return log(reward=around(level, 150, 0.03), mismatch_kl=kl, off_policy_level=lag)


def gap_that_grows_unevenly():
    gap = 0.015 * np.exp(0.06 * alike(ROWS, 0.5) + np.maximum(T - 100, 0) * 0.022)
    return log(source="import:csv", logprob_gap=gap, reward=around(0.6 - 0.2 * (T >= 160), ROWS))


def smoothed_gap():
    gap = 0.02 * np.exp(0.03 * alike(ROWS, 0.97))
    return log(source="import:csv", logprob_gap=gap, reward=around(0.5, ROWS))


def three_parts(right, **more):
    form = np.minimum(np.linspace(0.1, 1.2, ROWS), 0.5)
    form = np.where(form < 0.5, around(form, ROWS, 0.01).clip(0, 0.49), 0.5)
    right = around(right, ROWS, 0.04).clip(0)
    return log(reward=form + right, rewards__a__mean=form, rewards__b__mean=right, **more)


def part_that_stands():
    return three_parts(np.full(ROWS, 0.25), zero_std_share=line(0, 0.6, ROWS, 0.03).clip(0, 1))


def others_gain_more():
    rising, still = line(0.1, 0.6, ROWS), around(0.25, ROWS, 0.04)
    return log(reward=rising + still, rewards__a__mean=rising, rewards__b__mean=still)


def small_part_falls():
    main, small = line(0.6, 1.2, 90), line(0.14, 0.0, 90, 0.003)
    return log(reward=main + small, rewards__main=main, rewards__brief=small)


def tried(first, several, rows=120, every=6):
    def now_and_then(ends):
        return [one if at % every == 0 else None for at, one in enumerate(line(*ends, rows, 0.01))]

    return log(
        reward=line(0.3, 0.6, rows),
        entropy=line(0.5, 0.05, rows, 0.01).clip(0.01),
        **{"eval__pass@1": now_and_then(first), "eval__pass@8": now_and_then(several)},
    )


def sure_and_solved():
    return log(
        reward=np.minimum(around(np.minimum(np.linspace(0.5, 2.0, 120), 0.96), 120), 1.0),
        entropy=line(0.8, 0.02, 120, 0.005),
        zero_std_share=line(0.1, 0.9, 120).clip(0, 1),
    )


def small_kl_that_begins_at_0():
    kl = 5e-4 * (1 - np.exp(-np.arange(120) / 6)) * np.exp(around(0, 120, 0.1))
    return log(reward=around(0.5, 120, 0.01), kl=kl)


def some_gradients_are_none():
    norm = around(0.5, 60)
    norm[[20, 31]] = np.inf
    return log(reward=around(0.5, 60), grad_norm=norm)


def smoothed():
    shown = [0.5]
    for raw in around(0.5, 320, 0.1):
        shown.append(0.95 * shown[-1] + 0.05 * raw)
    return log(reward=shown)


def going_far():
    way = np.interp(np.arange(320), [0, 80, 180, 200, 320], [0, 1.0, 1.7, 1.3, 2.0])
    return log(reward=way + 0.03 * alike(320, 0.5))


def cut_while_it_rises():
    return log(reward=line(0.3, 0.7, 120), truncated_share=line(0.02, 0.5, 120).clip(0, 1))


def tools_fail_while_it_rises():
    failing = line(0.02, 0.4, 90, 0.01).clip(0, 1)
    return log(reward=line(0.2, 0.8, 90), tools__failure_frequency=failing)


def loss_stays_nan():
    return log(source="import:csv", loss=np.where(np.arange(60) < 50, around(0.5, 60), np.nan))


FOUND = {
    "a KL of whole answers is not judged as of a token": ("H03", FINE, lambda: drifting(0.2, 0.8)),
    "a KL that no answer has is": ("H03", SUSPECT, lambda: drifting(0.2, 0.8, by=100.0)),
    "a KL whose reward falls is": ("H03", SUSPECT, lambda: drifting(0.8, 0.2)),
    "a KL from the first row on is another model": (
        "H03", SUSPECT, lambda: log(reward=around(0.5, 60), kl=around(0.12, 60, 0.01))),
    "good answers that grow into the limit are cut": (
        "H04", SUSPECT, lambda: cut_off([0.7, 0.95, 1.05])),
    "and are no collapse": ("H43", UNKNOWN, lambda: cut_off([0.7, 0.95, 1.05])),
    "text without end is": ("H43", SUSPECT, lambda: cut_off([0.7, 0.7, 0.2])),
    "cut completions are no cause while the reward rises": ("H04", FINE, cut_while_it_rises),
    "a small KL that begins at 0 is no rounding": ("H24", FINE, small_kl_that_begins_at_0),
    "single steps without a gradient end nothing": ("H26", UNKNOWN, some_gradients_are_none),
    "a loss that stays NaN does": ("H26", Level.FAULT, loss_stays_nan),
    "a sure policy whose prompts are solved is no suspect": ("H30", NOTE, sure_and_solved),
    "pass@1 that rises while pass@8 falls narrows": (
        "H30", SUSPECT, lambda: tried((0.3, 0.5), (0.8, 0.6))),
    "where both fall the held-out score does": (
        "H38", SUSPECT, lambda: tried((0.5, 0.3), (0.8, 0.6))),
    "a part that stands while the others end is a reservation": ("H37", NOTE, part_that_stands),
    "a part that rises is none": ("H37", UNKNOWN, lambda: three_parts(np.linspace(0.2, 0.5, ROWS))),
    "a part that has never paid is none": ("H37", UNKNOWN, lambda: three_parts(np.zeros(ROWS))),
    "nor while the others have more to gain": ("H37", UNKNOWN, others_gain_more),
    "a small part that falls is noted": ("H38", NOTE, small_part_falls),
    "failures of tools are no cause while the reward rises": (
        "H41", FINE, tools_fail_while_it_rises),
    "a smoothed curve that rises is judged as smoothed": ("H47", NOTE, smoothed),
    "a curve that goes far with little noise is not": ("H47", FINE, going_far),
    "a KL of sampler and trainer that grows before the fall": (
        "H63", SUSPECT, lambda: apart(0.3, 0.7, 0.3)),
    "the same of a run that learns is fine": ("H63", FINE, lambda: apart(0.3, 0.57, 0.7)),
    "a gap that grows unevenly": ("H63", SUSPECT, gap_that_grows_unevenly),
    "a smoothed gap shows no growth": ("H63", UNKNOWN, smoothed_gap),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_a_cause_is_found_where_it_is_and_nowhere_else(case):
    code, level, made = FOUND[case]
    report = diagnose(made())
    found = {one.hypothesis: one.level for one in report.findings}
    assert found[code] is level
    if level is SUSPECT:
        assert report.causes[0].hypothesis == code


def test_evaluations_of_noise_beside_a_better_first_try_are_no_lost_diversity():
    for _ in range(40):
        found = diagnose(tried((0.3, 0.5), (0.7, 0.7), rows=60)).findings
        assert next(one.level for one in found if one.hypothesis == "H30") is not SUSPECT


@pytest.mark.parametrize(("made", "is_told"), [(smoothed, True), (going_far, False)])
def test_a_curve_is_called_smoothed_where_it_is(made, is_told):
    assert ("smoothed" in SeedNoise().sign(made()).text) is is_told


@pytest.mark.parametrize(("spread", "solved"), [(0.2, True), (1.0, False)])
def test_equal_groups_of_a_reward_whose_best_is_not_1_are_not_called_solved(spread, solved):
    trace = log(
        reward=np.minimum(around(0.95, 60), 1.0),
        reward_std=around(spread, 60),
        zero_std_share=around(0.8, 60),
    )
    assert ("solved" in diagnose(trace).summary) is solved
