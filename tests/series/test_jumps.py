"""What happens at one step and stays: settings that are changed, other scales, runs begun again."""

import numpy as np
import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Level
from flatline.remarks.main_event import main_event
from tests.series.made import around, event_of, line, log, said, wobbling

time = np.arange(240)


# A setting.


def rated(rate, reward=0.5):
    rows = len(rate)
    return log(reward=around(reward, rows), learning_rate=np.asarray(rate), kl=around(0.1, rows))


def warmed_up(rows=200, to=5e-7):
    return to * np.minimum(np.arange(1, rows + 1) / 12, 1)


@pytest.mark.parametrize(("end", "times"), [(1, "8"), (0.5, "7.97")])
def test_a_rate_that_jumps_after_its_warm_up_is_told_as_a_jump(end, times):
    rate = warmed_up() * np.linspace(1, end, 200)
    rate[120:] *= 8
    text = event_of(rated(rate))
    assert text.startswith("At step 121 your learning rate") and f"({times} times" in text
    assert "The learning rate jumps from" in said(rated(rate))


@pytest.mark.parametrize(
    "rate",
    [
        warmed_up(),
        warmed_up() * 0.5 * (1 + np.cos(np.pi * np.arange(200) / 200)),
        np.round(1e-6 * (1 - np.arange(200) / 200), 7),  # printed to one digit
        np.concatenate([1e-6 * 0.5 * (1 + np.cos(np.pi * np.arange(100) / 100))] * 2),  # anew
        np.repeat([1e-6, 5e-7, 2.5e-7, 1.25e-7, 6e-8], 40),  # five steps of a schedule
    ],
)
def test_what_a_schedule_does_by_itself_is_no_jump(rate):
    assert "jumps" not in said(rated(rate))
    assert main_event(rated(rate)) is None


def decayed():
    """Printed to two digits, and 0 for most of the run."""
    rate = [2e-6 * min((at + 1) / 12, 0.5 * (1 + np.cos(np.pi * at / 80))) for at in range(80)]
    return [float(f"{one:.1e}") for one in [*rate, *[0.0] * 160]]


@pytest.mark.parametrize(("rate", "told"), [
    ([*np.linspace(0, 1e-5, 20), *np.linspace(1e-5, 0, 40)], "rises to 1e-05 until step 20"),
    (np.repeat([3e-5, 6e-4], 30), "jumps from 3e-05 to 0.0006 at step 31"),
    (1e-6 * (2 + np.sin(time / 5)), "goes up and down"),
    (decayed(), "then falls to 0, where it is from step"),
    (warmed_up(to=1e-9), "100 times below the range that is usual"),
])  # fmt: skip
def test_a_schedule_is_told(rate, told):
    assert told in said(rated(rate))


def test_a_rate_that_somebody_changed_is_no_warm_up_and_a_small_one_is_usual():
    assert "rises" not in said(rated(np.repeat([3e-5, 6e-4], 30)))
    assert "usual" not in said(rated(warmed_up(to=5e-8)))


def test_a_rate_that_was_warmed_up_is_at_no_ceiling():
    rate = np.minimum(np.arange(1, 151) / 6, 1) * 9e-6
    assert "is at its ceiling" not in said(log(reward=around(0.5, 150), critic_lr=rate))


def test_a_reward_that_rises_through_a_change_of_the_rate_still_rises():
    rate = np.repeat([1e-5, 5e-6], 60)
    report = diagnose(log(reward=line(0.3, 0.7, 120), learning_rate=rate))
    assert report.outcome is Outcome.HEALTHY


def test_a_setting_that_changes_on_the_way_is_told_whatever_it_is_called():
    told = said(log(reward=wobbling(1.0), my_weight=np.repeat([0.1, 0.001], 30)))
    assert "`my_weight` jumps from 0.1 to 0.001 at step 31" in told
    assert "jumps" not in said(log(reward=wobbling(1.0), my_weight=wobbling(0.1)))


def test_passes_over_the_data_are_no_setting_that_somebody_changed():
    falling = line(0.3, 0.05, 200, 0.005).clip(0, 1)
    passes = (np.arange(200) >= 120).astype(float)
    trace = log(reward=around(0.5, 200), training__epoch=passes, clip_share=falling)
    assert main_event(trace) is None


def test_memory_that_grows_in_steps_and_moves_nothing_is_no_event():
    memory = np.where(np.arange(120) < 12, 68.4, 70.3)
    assert main_event(log(reward=around(0.5, 120), perf__memory_gb=memory)) is None
    assert main_event(rated(np.repeat([1e-6, 3e-6], 60))) is not None


# A level, and what goes with it.


def test_a_reward_that_steps_to_another_level_with_other_columns_is_an_event():
    later = np.arange(160) >= 80
    reward = around(np.linspace(0.5, 0.7, 160) - 0.35 * later, 160)
    both = log(reward=reward, completion_length=around(300 + 200 * later, 160, 5))
    text = event_of(both)
    assert text.startswith("At step 81 your reward falls from 0.")
    assert "the length of completions goes from" in text
    assert main_event(log(reward=reward, completion_length=around(300, 160, 5))) is None


def test_a_sampler_that_stays_with_its_trainer_is_no_event():
    trace = log(reward=around(0.5, 120), mismatch_kl=around(0.001, 120, 0.00005))
    assert main_event(trace) is None


def test_only_what_has_moved_when_the_reward_turns_is_told_to_have_moved_before():
    reward, early, late = (
        np.interp(np.arange(200), [0, turn, 199], levels)
        for turn, levels in ((120, (0.3, 0.8, 0.4)), (60, (1, 1, 9)), (118, (1, 1, 9)))
    )
    columns = {"ratio": around(early, 200, 0.05), "other": around(late, 200, 0.05)}
    told = said(log(reward=around(reward, 200), **columns))
    before = told.split("Before the reward turns down (around step 1")[1].split(".\n")[0]
    assert "`ratio` stays" in before and "only until step 6" in before
    assert "`other` stays" not in before


@pytest.mark.parametrize("until", [6, 114])
def test_a_part_that_takes_no_time_now_and_then_or_after_the_first_rows_is_none(until):
    part = np.where(np.arange(120) < until, around(8.0, 120, 0.1), 0.01)
    part[60] = 8.0
    trace = log(reward=around(0.5, 120), timing_s__sync=part, seconds=around(60.0, 120))
    assert main_event(trace) is None


# Gradients that are no number.


def overflowing(bad, **more):
    norm = np.where(bad, np.inf, around(0.4, 240))
    return log(reward=line(0.4, 0.55, 240), grad_norm=norm, **more)


def test_gradients_that_overflow_now_and_then_or_from_one_row_on_are_no_such_event():
    assert main_event(overflowing(time % 12 == 0)) is None  # a scaler tries a larger scale
    assert main_event(overflowing(time > 150)) is None  # H26 tells that


# A reward on another scale.


def scaled(factor=0.2, of_spread=None, after=(2.1, 1.1), at=130, **more):
    level = np.interp(time, [0, at - 30, at - 1, at, 240], [0.6, 2.1, 2.1, *after])
    columns = {
        "reward": around(level, 240, 0.05) * np.where(time < at, 1.0, factor),
        "objective/scores_std": around(1.08, 240, 0.04)
        * np.where(time < at, 1.0, of_spread or factor),
        "entropy": line(1.2, 1.0, 240, 0.01),
        "completion_length": around(200.0, 240, 3.0),
    }
    return log(**columns | more)


@pytest.mark.parametrize("factor", [0.2, 0.5, 3.0])
def test_a_reward_and_a_spread_that_are_multiplied_by_one_number_are_on_another_scale(factor):
    trace = scaled(factor)
    trend = diagnose(trace).trend
    assert event_of(trace).startswith("At step 131 the scale of your reward changes: ")
    assert f"both by a factor of {factor:g}" in event_of(trace)
    assert trend.falls and "Since step 131" in trend.text


def test_a_reward_that_goes_on_rising_on_its_new_scale_is_no_fall():
    assert diagnose(scaled(0.2, after=(2.1, 3.5))).trend.rises


def test_a_reward_on_another_scale_is_no_smoothed_curve_and_no_rate_that_is_too_low():
    levels = {one.hypothesis: one.level for one in diagnose(scaled()).findings}
    assert levels["H47"] is Level.OK and levels["H24"] is not Level.SUSPECT


def test_what_changes_with_the_policy_is_no_change_of_the_scale():
    jumps = around(np.where(time < 130, 1.2, 0.4), 240, 0.01)
    alone = {n: scaled().metric(n) for n in ("reward", "objective/scores_std")}
    for trace in (
        scaled(0.2, of_spread=0.6),  # fewer answers are right
        scaled(0.2, entropy=jumps),  # the policy collapses
        scaled(1.0),
        log(**alone),  # nothing shows the policy
    ):
        assert "scale" not in event_of(trace)


# A run that begins again.


def begun_again(pause=20_000.0, rate=True, at=100, rows=200):
    time = np.arange(rows)
    count = time - np.where(time >= at, at, 0) * rate
    dip = np.interp(time, [at, at + 8, at + 30], [0, 0.4, 0], left=0, right=0)
    return log(
        time=np.cumsum(60.0 + pause * (time == at)),
        learning_rate=1e-6 * np.minimum((count + 1) / 10, 1) * (1 - count / 300),
        reward=around(np.linspace(0.3, 0.9, rows) - dip, rows, 0.01),
    )


def test_a_run_that_stood_still_and_starts_its_schedule_anew_has_begun_again():
    event = main_event(begun_again())
    assert event.certain and event.text.startswith("At step 101 the run begins again, 5.57 hours")
    assert "the learning rate starts anew from 1e-07" in event.text
    assert "your reward falls from 0.5" in event.text and "is back by step" in event.text


def test_neither_a_pause_nor_a_cycle_of_the_rate_alone_is_that():
    assert main_event(begun_again(rate=False)) is None
    assert main_event(begun_again(pause=0.0)) is None


def replaced(at=(120,), falls=0.0, learns=0.6, **more):
    """The KL begins from nothing at some steps while all else goes on."""
    since = time - np.max([np.where(time >= one, one, 0) for one in at], axis=0)
    columns = {
        "kl": 1e-4 + 4e-4 * since * np.exp(0.05 * around(0, 240, 1.0)),
        "reward": around(0.2 + learns * time / 240 - falls * (time >= at[0]), 240, 0.02),
        "completion_length": around(300 + learns * time / 2, 240, 4.0),
    }
    return log(**columns, **more)


def test_a_kl_that_begins_from_nothing_while_all_else_goes_on_has_another_reference():
    event = main_event(replaced())
    assert event.certain and event.text.startswith("At step 121 the KL falls from 0.04")
    assert "cannot be compared" in event.text
    loss = np.exp(-(time % 120) / 20) + 0.1
    anew = event_of(replaced(train__critic_loss=around(loss, 240, 0.01)))
    assert "`train/critic_loss` jumps from 0.1" in anew


@pytest.mark.parametrize("how", [{"falls": 0.3}, {"at": (60, 100, 140, 180)}, {"learns": 0.0}])
def test_a_policy_set_back_a_reference_moved_by_plan_or_a_run_that_went_nowhere_is_none(how):
    assert "cannot be compared" not in event_of(replaced(**how))


def test_ramps_hardly_ever_jump():
    told = (said(log(reward=wobbling(1.0, 40), score=line(40, 60, 40, 4))) for _ in range(40))
    assert sum("at step" in one for one in told) <= 2


def test_a_wave_does_not_stay():
    wave = 500 + 200 * np.sin(np.arange(600) / 60) + around(0, 600, 30)
    told = said(log(reward=wobbling(1.0, 600), completion_length=wave))
    assert "does not change" not in told
