"""What a seventh round of logs showed: each mended in the general mechanism, on made numbers and on
the log that showed it (docs/real-logs/seventh)."""

from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Level
from flatline.hypotheses.h03_kl_divergence import KlDivergence
from flatline.hypotheses.h04_context_truncation import ContextTruncation
from flatline.hypotheses.h30_entropy_collapse import EntropyCollapse
from flatline.hypotheses.h32_zero_variance_groups import ZeroVarianceGroups
from flatline.hypotheses.h37_format_dominates import FormatDominates
from flatline.hypotheses.h38_reward_hacking import RewardHacking
from flatline.hypotheses.h43_behaviour_collapse import BehaviourCollapse
from flatline.hypotheses.h47_seed_noise import SeedNoise
from flatline.hypotheses.h63_growing_mismatch import GrowingMismatch
from flatline.hypotheses.trend import trend_of
from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event
from flatline.trace import Trace
from flatline.trace.importers import open_log
from flatline.trace.importers.resolve import resolve
from tests.test_fifth_logs import around, log, same_noise  # noqa: F401

SEVENTH = Path(__file__).parents[1] / "docs" / "real-logs" / "seventh"


def report_of(name):
    return diagnose(open_log(SEVENTH / name))


# Which column is what completions earn.


@pytest.mark.parametrize(
    "name", ["rm_score", "train/rm_score_mean", "ret", "charts/episodic_return", "env.mean_score"]
)
def test_a_reward_is_known_by_the_words_of_its_name(name):
    found = resolve([name, "rm_score_std", "tokens"])
    assert found.aliases["reward"] == name
    assert any("by the words of its name" in note for note in found.notes)


@pytest.mark.parametrize(
    "name",
    [
        *("heldout/rm_score", "format_reward", "rm_score_std", "score_sd_in_group", "returns/mean"),
        *("reward_scale", "kl_reward", "eval_score_mean", "judge_score"),
    ],
)
def test_a_part_a_spread_or_an_evaluation_is_no_reward(name):
    assert "reward" not in resolve([name]).aliases


def test_of_two_that_may_be_the_reward_neither_is_taken():
    assert "reward" not in resolve(["rm_score", "task_return"]).aliases


def test_groups_that_are_the_same_are_known_by_words_too():
    assert resolve(["frac_groups_same"]).aliases == {"zero_std_share": "frac_groups_same"}
    assert resolve(["same_prompts_seen"]).aliases == {}


def test_a_healthy_log_with_names_of_its_own_is_called_so():
    report = report_of("tldr_rows.json")
    assert report.outcome is Outcome.HEALTHY
    assert "names no step" not in " ".join(report.caveats)
    assert "`kl_seq` +" not in " ".join(report.remarks)  # what is taken off makes no gain


def test_a_score_of_kept_groups_that_rises_is_no_health_where_most_groups_are_solved():
    found = ZeroVarianceGroups().sign(open_log(SEVENTH.parent / "filtered.jsonl"))
    assert found.level is Level.NOTE and "`rollout/solve_all`" in found.text


# A KL whose unit is not known.


def drifting(reward, by=1.0):
    kl = around(np.linspace(0.1, 50.0, 120), 120, 0.05).clip(0.08) * by
    return log(reward=reward, kl=kl, completion_length=around(300.0, 120, 5.0))


def test_a_kl_of_whole_answers_is_not_judged_as_if_it_were_of_a_token():
    found = KlDivergence().sign(drifting(around(np.linspace(0.2, 0.8, 120), 120)))
    assert found.level is Level.OK
    assert "if the log has it for whole answers" in found.text


def test_a_kl_that_no_answer_could_have_or_whose_reward_falls_is_judged_as_before():
    rising, falling = (around(np.linspace(*each, 120), 120) for each in ((0.2, 0.8), (0.8, 0.2)))
    assert KlDivergence().sign(drifting(rising, by=100.0)).level is Level.SUSPECT
    assert KlDivergence().sign(drifting(falling)).level is Level.SUSPECT


def test_a_kl_that_is_there_from_the_first_row_is_still_another_model():
    kl = around(np.full(60, 0.12), 60, 0.01)
    found = KlDivergence().sign(log(reward=around(0.5, 60), kl=kl))
    assert found.level is Level.SUSPECT and "different model" in found.headline


def test_a_reward_model_that_is_gamed_is_named_and_its_kl_is_not():
    report = report_of("scalars.csv")
    [cause] = report.causes
    assert cause.hypothesis == "H38"
    assert "`eval/gold_score` falls from 0.582 at its best (step 125)" in cause.text
    assert "43 nat per token" not in report.summary
    assert not any("KL" in text and "per token" in text for text in report.remarks)


# What is gained, and what is not.


def three_parts(right, rows=200, **more):
    form = np.minimum(np.linspace(0.1, 1.2, rows), 0.5)
    form = np.where(form < 0.5, around(form, rows, 0.01).clip(0, 0.49), 0.5)
    right = around(right, rows, 0.04).clip(0)
    return log(reward=form + right, rewards__a__mean=form, rewards__b__mean=right, **more)


def test_a_part_that_stands_while_the_others_come_to_their_end_is_a_reservation():
    dead = around(np.linspace(0.0, 0.6, 200), 200, 0.03).clip(0, 1)
    trace = three_parts(np.full(200, 0.25), zero_std_share=dead)
    report = diagnose(trace)
    head = report.answer.headline
    assert head == "Your run learns, with one reservation: your reward rises, but `b` does not."
    note = FormatDominates().sign(trace).text
    assert "`a` (0.2" in note and "Groups of equal rewards, which teach nothing, go from" in note


@pytest.mark.parametrize("right", [np.linspace(0.2, 0.5, 200), np.full(200, 0.0)])
def test_a_part_that_rises_or_has_never_paid_is_none(right):
    finding = next(one for one in diagnose(three_parts(right)).findings if one.hypothesis == "H37")
    assert finding.level is Level.UNKNOWN


def test_while_the_others_have_more_to_gain_there_is_none():
    rising, still = around(np.linspace(0.1, 0.6, 200), 200), around(0.25, 200, 0.04)
    trace = log(reward=rising + still, rewards__a__mean=rising, rewards__b__mean=still)
    found = next(one for one in diagnose(trace).findings if one.hypothesis == "H37")
    assert found.level is Level.UNKNOWN


def test_a_run_that_learns_nothing_but_form_is_told_so():
    head = report_of("rloo_console.log").answer.headline
    assert head.endswith("your reward rises, but `correctness_reward_func` does not.")


# Several tries.


def tried(first, several, rows=120, every=6):
    def now_and_then(ends):
        level = around(np.linspace(*ends, rows), rows, 0.01)
        return [one if at % every == 0 else None for at, one in enumerate(level)]

    return log(
        reward=around(np.linspace(0.3, 0.6, rows), rows),
        entropy=around(np.linspace(0.5, 0.05, rows), rows, 0.01).clip(0.01),
        **{"eval__pass@1": now_and_then(first), "eval__pass@8": now_and_then(several)},
    )


def test_pass_at_1_that_rises_while_pass_at_k_falls_is_a_policy_that_gets_narrower():
    trace = tried((0.3, 0.5), (0.8, 0.6))
    found = EntropyCollapse().sign(trace)
    assert found.level is Level.SUSPECT and "narrower" in found.headline
    assert "`eval/pass@8` falls" in found.text and "The entropy goes from" in found.text
    assert diagnose(trace).causes[0].hypothesis == "H30"


def test_where_both_fall_it_is_the_held_out_score_that_falls():
    trace = tried((0.5, 0.3), (0.8, 0.6))
    assert RewardHacking().sign(trace).level is Level.SUSPECT
    assert "narrower" not in EntropyCollapse().sign(trace).headline


def test_a_log_of_lost_diversity_is_no_log_of_a_gamed_reward():
    [cause] = report_of("metrics_long.csv").causes
    assert cause.hypothesis == "H30" and "`eval_pass_at_16` falls" in cause.text


# Smoothed, or only going far.


def wandering(rows=320, alike=0.5):
    noise = np.zeros(rows)
    for at in range(1, rows):
        noise[at] = alike * noise[at - 1] + around(0.0, 1, 0.03)[0]
    return np.interp(np.arange(rows), [0, 80, 180, 200, 320], [0, 1.0, 1.7, 1.3, 2.0]) + noise


def test_a_curve_that_goes_far_with_little_noise_is_not_called_smoothed():
    trace = log(reward=wandering())
    assert trend_of(trace).rises
    assert "smoothed" not in SeedNoise().sign(trace).text


def test_a_smoothed_curve_still_is():
    shown = [0.5]
    for raw in around(0.5, 320, 0.1):
        shown.append(0.95 * shown[-1] + 0.05 * raw)
    assert "smoothed curve" in SeedNoise().sign(log(reward=np.array(shown))).text


# What happened on the way.


def begun_again(pause=20_000.0, rate=True, at=100, rows=200):
    wait = np.full(rows, 60.0)
    wait[at] += pause
    count = np.arange(rows) - np.where(np.arange(rows) >= at, at, 0) * rate
    dip = np.interp(np.arange(rows), [at, at + 8, at + 30], [0, 0.4, 0], left=0, right=0)
    columns = {
        "time": np.cumsum(wait),
        "learning_rate": 1e-6 * np.minimum((count + 1) / 10, 1) * (1 - count / 300),
        "reward": around(np.linspace(0.3, 0.9, rows) - dip, rows, 0.01),
    }
    steps = [
        {"step": row + 1, **{name: float(values[row]) for name, values in columns.items()}}
        for row in range(rows)
    ]
    return Trace.from_rows(run={"source": "import:csv", "settings": {}}, steps=steps)


def test_a_run_that_stood_still_and_starts_its_schedule_anew_has_begun_again():
    event = main_event(begun_again())
    assert event.text.startswith("At step 101 the run begins again, 5.57 hours after")
    assert "the learning rate starts anew from 1e-07" in event.text
    assert "your reward falls from 0.581 to 0.25" in event.text and "is back by step" in event.text
    assert event.certain


def test_neither_a_pause_nor_a_cycle_of_the_rate_alone_is_that():
    assert main_event(begun_again(rate=False)) is None
    assert main_event(begun_again(pause=0.0)) is None


def test_a_restart_is_the_first_sentence_of_the_log_that_shows_it():
    report = report_of("run_history_export.csv")
    head = report.answer.headline
    assert "At step 184 the run begins again, 5.51 hours after the step before" in head
    assert "`loss/value_avg` jumps from 0.0" in head and "a critic that begins anew" in head
    assert "your reward falls from 1.69 to 1.23 until step 203 and is back by step 243" in head
    assert "the learning rate by step" not in " ".join(report.remarks)


def outage(share=0.35, rows=200, begin=100, end=140):
    """Calls fail for a while, with some steps to go there, and what failed earns nothing."""
    steps = np.arange(rows)
    failed = np.interp(steps, [begin, begin + 8, end - 1, end], [0.05, share, share, 0.01])
    failed = np.where((steps >= begin) & (steps < end), failed, 0.01)
    failed = around(failed, rows, 0.01).clip(0, 1)
    learned = np.linspace(0.5, 0.55, rows)
    return log(
        reward=around(learned * (1 - failed), rows, 0.03),
        box_failed=failed,
        t_box=around(17 + 190 * failed, rows, 0.5),
        grad_norm=around(0.3, rows, 0.01),
    )


def test_an_outage_that_takes_some_steps_to_begin_is_the_event():
    text = main_event(outage()).text
    assert text.startswith("In steps 10") and "your reward falls from 0.5" in text
    assert "`box_failed` rises from 0.0" in text and "`t_box` rises from" in text
    assert "divided by what `box_failed` leaves, your reward stays at 0.5" in text


def test_columns_that_move_without_the_outcome_are_no_event():
    trace = outage()
    steady = log(
        reward=around(np.linspace(0.5, 0.55, 200), 200, 0.03),
        box_failed=trace.metric("box_failed"),
        t_box=trace.metric("t_box"),
    )
    assert main_event(steady) is None


def test_a_sick_sandbox_is_the_first_sentence_of_the_log_that_shows_it():
    head = report_of("metrics.jsonl").answer.headline
    assert "In steps 226 to 264 your reward falls from 0.699 to 0.444 and then comes back" in head
    assert "`sbx_timeout` rises from 0.0103 to 0.344" in head


# Sampler and trainer.


def apart(last, reward, rows=150):
    kl = 0.001 * np.exp(np.linspace(0, np.log(last / 0.001), rows)) * np.exp(around(0, rows, 0.1))
    lag = around(np.linspace(1, 7, rows), rows, 0.4)
    return log(reward=around(reward, rows, 0.03), mismatch_kl=kl, off_policy_level=lag)


def test_a_kl_of_sampler_and_trainer_that_grows_before_the_reward_falls_is_suspected():
    turned = np.interp(np.arange(150), [0, 100, 149], [0.3, 0.7, 0.3])
    found = GrowingMismatch().sign(apart(0.05, turned))
    assert found.level is Level.SUSPECT and "the reward fell later" in found.text
    assert "older and older: `off_policy_level` goes from" in found.text


def test_the_same_kl_of_a_run_that_learns_is_not():
    assert GrowingMismatch().sign(apart(0.05, np.linspace(0.3, 0.7, 150))).level is Level.OK


def test_an_asynchronous_run_that_gets_stale_is_told_so():
    report = report_of("reasoning_async.log")
    [cause] = report.causes
    assert cause.hypothesis == "H63"
    assert "Since step 160 it is more than twice" in cause.text and "fell later" in cause.text
    assert not any("Mismatch KL" in t and "while the reward falls" in t for t in report.remarks)


def test_evaluations_without_a_step_are_of_the_step_that_is_told_next():
    trace = open_log(SEVENTH / "reasoning_async.log")
    score = trace.steps["heldout_reward"]
    known = np.isfinite(score)
    assert trace.steps["step"][known].tolist() == list(range(0, 300, 25))
    assert score[known][0] == 0.58


# Into the limit.


def growing(skill, rows=200):
    """Completions that run into a limit more and more, where what is cut earns nothing."""
    cut = around(np.interp(np.arange(rows), [0, 80, 199], [0, 0.02, 0.35]), rows, 0.02).clip(0, 1)
    return log(
        reward=around(skill * (1 - cut), rows, 0.02),
        truncated_share=cut,
        completion_length=around(np.linspace(400, 2000, rows), rows, 20.0),
    )


def test_good_answers_that_grow_into_the_limit_are_no_collapse():
    better = np.interp(np.arange(200), [0, 80, 199], [0.7, 0.95, 1.05])
    trace = growing(better)
    found = ContextTruncation().sign(trace)
    assert found.level is Level.SUSPECT and "the limit that costs reward" in found.text
    assert [one.hypothesis for one in diagnose(trace).causes] == ["H04"]


def test_text_without_end_still_is_one():
    worse = np.interp(np.arange(200), [0, 80, 199], [0.7, 0.7, 0.2])
    assert BehaviourCollapse().sign(growing(worse)).level is Level.SUSPECT


# The schedule.


def test_a_rate_printed_to_few_digits_does_not_go_up_and_down():
    rate = [2e-6 * min((at + 1) / 12, 0.5 * (1 + np.cos(np.pi * at / 80))) for at in range(80)]
    rate = np.array([float(f"{one:.1e}") for one in [*rate, *[0.0] * 160]])
    told = " ".join(remarks_of(log(learning_rate=rate, reward=around(0.5, 240))))
    assert "The learning rate rises to" in told and "then falls to 0, where it is from step" in told


def test_a_rate_that_goes_up_and_down_is_still_told_so():
    rate = 1e-6 * (2 + np.sin(np.arange(240) / 5))
    told = " ".join(remarks_of(log(learning_rate=rate, reward=around(0.5, 240))))
    assert "The learning rate goes up and down" in told


def test_evaluations_of_noise_beside_a_better_first_try_are_no_lost_diversity():
    said = [
        EntropyCollapse().sign(tried((0.3, 0.5), (0.7, 0.7), rows=60)).headline for _ in range(40)
    ]
    assert not any("narrower" in headline for headline in said)


def test_what_the_reward_did_while_there_was_a_rate_is_told_where_it_ended_early():
    told = report_of("train_table.txt").causes[0].text
    assert "goes from 0.373 to 0.469 while there is a rate (first and last third)" in told
    assert told.endswith("and is 0.471 since.")


def test_an_evaluation_that_lost_much_of_its_best_is_not_said_to_rise():
    told = " ".join(report_of("reasoning_async.log").remarks)
    assert "it rises until then; since then it may fall (0.678 in the last 2)" in told
    assert "most of it early" not in told
