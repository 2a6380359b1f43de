"""What a tenth round of logs showed: each mended in the general mechanism, on made numbers and on
the log that showed it (docs/real-logs/tenth)."""

import json
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.trend import trend_of
from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event
from flatline.trace.importers import open_log
from flatline.trace.importers.resolve import resolve
from tests.test_fifth_logs import around, log, same_noise  # noqa: F401

TENTH = Path(__file__).parents[1] / "docs" / "real-logs" / "tenth"
NAMES = {
    "reward": "rew_avg return_avg r_mean avg_r R rollout/reward_mean rollout/mean_score task_score "
    "env_reward total_reward AvgReward meanReward rew/mean ep_rew",
    "kl": "pol_kl kl_pol kl_div kl_avg kl_vs_ref refkl kl_per_tok ref_kl_div policy/kl_ref meanKL",
    "entropy": "ent_mean pol_ent entr entropy_avg tok_ent ent_per_tok policy/entropy actor_entropy",
    "grad_norm": "g_norm grad_l2 norm_grad grad_norm_avg gnorm/mean gradNorm opt/gnorm",
    "learning_rate": "lrate step_lr opt/lr cur_lr lr_now sched_lr policy/lr pol_lr lr/actor "
    "current_learning_rate",
    "completion_length": "len_avg avg_len length_mean ans_len comp_len gen_toks tok_per_resp "
    "rollout/resp_len rollout/resp_tokens_mean",
    "truncated_share": "trunc_rate pct_cut rollout/truncated_frac hit_max frac_at_max_len cut_off",
    "clip_share": "clip_pct clipf clip_rate policy/ratio_clip_frac",
    "seconds": "sys/step_seconds dt_step secs_per_step step_s",
    "zero_std_share": "groups_zero_std zero_var_groups dead_frac",
}
OTHERS = (
    "rew_std reward_format r_std val_rew eval_len dev_kl ent_coef entropy_bonus kl_coef kl_old "
    "critic_lr lr_scale lr_min grad_clip grad_std len_max prompt_len_avg val_len_avg clip_range "
    "len_std rew_max rew_p90 kl_target policy/approx_kl akl reward_model_lr val_pass ret_sd Rsd r "
    "h policy/loss clipped_frac time_gen length_penalty eval/policy/kl_ref reward_ema"
)


def told(name):
    return " ".join(remarks_of(open_log(TENTH / name)))


def said(**columns):
    return " ".join(remarks_of(log(**columns)))


# What is read.


@pytest.mark.parametrize(
    ("name", "column"),
    [(name, column) for column, names in NAMES.items() for name in names.split()],
)
def test_a_name_of_clear_words_is_known(name, column):
    assert resolve([name, "other"]).aliases == {column: name}


@pytest.mark.parametrize("name", OTHERS.split())
def test_a_part_a_spread_a_setting_or_an_evaluation_is_not_taken_for_the_whole(name):
    assert resolve([name, "other"]).aliases == {}


def test_a_folder_of_one_trainer_hides_no_names_of_another():
    names = ["rollout/reward_mean", "policy/lr", "policy/kl_ref", "policy/policy_kl", "reward"]
    found = resolve(names).aliases
    assert found == {"reward": "reward", "kl": "policy/policy_kl", "learning_rate": "policy/lr"}


def test_a_log_with_such_names_is_judged():
    report = diagnose(open_log(TENTH / "mlflow_metrics.csv"))
    assert "A length limit cuts off your completions" in report.summary
    assert "The training reward rises, then falls" in report.summary


def test_an_evaluation_that_says_iteration_is_read_with_the_one_before_the_first():
    report = diagnose(open_log(TENTH / "stdout_rloo_v7.txt"))
    assert "Your training reward rises and your held-out score falls" in report.summary
    text = told("stdout_rloo_v7.txt")
    assert "`eval/dev_pass1` is 0.361 at first, 0.383 at last and 0.477 at most (step 150)" in text


def test_the_time_of_day_is_no_remark_and_two_of_a_step_are_no_second_row():
    trace = open_log(TENTH / "metrics.jsonl")
    assert "`ts`" not in " ".join(remarks_of(trace))
    assert not any("occurs more than once" in note for note in trace.run["notes"])
    clock = 1.76e9 + 60 * np.arange(80)
    assert "`tick`" not in said(reward=around(0.5, 80), tick=clock)
    assert "`tick`" not in said(reward=around(0.5, 80), tick=1000 * clock)


def test_a_rate_that_is_0_is_the_first_sentence_whatever_the_rate_is_called():
    headline = diagnose(open_log(TENTH / "metrics.jsonl")).answer.headline
    assert "Your learning rate is 0 long before the end" in headline


# Levels.


def test_a_last_level_is_one_that_the_first_rows_since_then_show_as_well():
    text = trend_of(open_log(TENTH / "metrics.jsonl")).text
    assert "Since step 63" not in text  # it was 0.305 over steps 60 to 89
    climbs = np.interp(np.arange(300), [0, 60, 120, 299], [0.2, 0.3, 0.34, 0.34])
    text = trend_of(log(reward=around(climbs, 300, 0.02))).text
    since = [float(word) for word in text.split("Since step ")[1:2] for word in word.split()[:1]]
    assert not since or since[0] > 90


# A run that begins again.


def replaced(at=(120,), falls=0.0, learns=0.6, rows=240, **more):
    """The KL begins from nothing at some steps while all else goes on."""
    time = np.arange(rows)
    since = time - np.max([np.where(time >= one, one, 0) for one in at], axis=0)
    kl = 1e-4 + 4e-4 * since * np.exp(0.05 * around(0, rows, 1.0))
    columns = {
        "kl": kl,
        "reward": around(0.2 + learns * time / rows - falls * (time >= at[0]), rows, 0.02),
        "completion_length": around(300 + learns * time / 2, rows, 4.0),
    }
    return log(**columns, **more)


def test_a_kl_that_begins_from_nothing_while_all_else_goes_on_has_another_reference():
    event = main_event(replaced())
    assert event.text.startswith("At step 121 the KL falls from 0.04")
    assert "the KL before and after cannot be compared" in event.text and event.certain
    loss = np.exp(-np.arange(240) / 20) + 0.1
    loss[120:] = loss[:120]
    event = main_event(replaced(train__critic_loss=around(loss, 240, 0.01)))
    assert "`train/critic_loss` jumps from 0.1" in event.text
    assert "a critic that begins anew" in event.text


def test_a_policy_set_back_a_reference_moved_by_plan_or_a_run_that_went_nowhere_is_no_such_event():
    texts = [
        str(main_event(one))
        for one in (replaced(falls=0.3), replaced(at=(60, 100, 140, 180)), replaced(learns=0.0))
    ]
    assert not any("cannot be compared" in text for text in texts)


def test_what_a_resume_did_not_restore_is_one_event_with_the_pause_of_the_rows_that_were_written():
    headline = diagnose(open_log(next(TENTH.glob("wandb_export*")))).answer.headline
    assert "healthy" not in headline
    assert "At step 161 the run begins again, 5.4 hours after the row before" in headline
    assert "the learning rate starts anew from 5.6e-08 (2.6e-07 before)" in headline
    assert "the KL before and after cannot be compared" in headline
    assert "`train/critic_loss` jumps from 0.146 to 1.69, as in the first rows (1.27)" in headline


# An outage.


def graded(begin=80, end=100, rows=200, left=0.0, **more):
    """Nothing is paid for some rows, and a step takes longer; the answers go on as they were."""
    out = (np.arange(rows) >= begin) & (np.arange(rows) < end)
    reward = np.where(out, left, around(np.linspace(0.4, 0.6, rows), rows, 0.03))
    columns = {
        "reward": reward,
        "completion_length": around(500, rows, 5),
        "timing__grading": around(np.where(out, 90.0, 30.0), rows, 1.0),
        "eval__acc": [
            (0.01 if out[at] else 0.4 + at / 500) if at % 10 == 9 else None for at in range(rows)
        ],
    }
    return log(**columns, **more)


def test_a_reward_that_is_gone_and_comes_back_is_told_with_both_edges_and_what_goes_with_it():
    event = main_event(graded())
    assert event.text.startswith("In steps 81 to 100 your reward is gone: about 0, 0.4")
    assert " to 0 at step 81, 0 to 0." in event.text and "at step 101)" in event.text
    assert "`timing/grading` rises from 30" in event.text
    assert "the length of completions does not change" in event.text
    assert "`eval/acc` of steps 90 and 100 (0.01 and 0.01) was taken in these steps" in event.after


def test_evaluations_of_an_outage_do_not_count_in_whether_the_score_moves():
    told = " ".join(remarks_of(graded()))
    assert "in 18 evaluations; it rises" in told


def test_a_reward_that_falls_by_half_or_that_stays_away_is_no_outage():
    for one in (graded(left=0.25), graded(begin=150, end=200), graded(begin=30, end=190)):
        event = main_event(one)
        assert event is None or "is gone" not in event.text


def test_a_grader_that_was_out_is_the_first_sentence_of_the_log_that_shows_it():
    headline = diagnose(open_log(TENTH / "driver_1187342.out")).answer.headline
    assert "In steps 84 to 101 your reward is gone: about 0.0048" in headline
    assert "(0.49 to 0.002 at step 84, 0.0098 to 0.435 at step 102)" in headline
    assert "the time of sampling rises from 109 to 232 s (109 after)" in headline
    assert "in 14 evaluations; it rises" in told("driver_1187342.out")


# What else is told.


def test_every_row_of_a_few_that_stand_out_is_told():
    norm = around(0.1, 120, 0.005)
    norm[[40, 90]] = 2.0, 1.5
    text = said(reward=around(0.5, 120), grad_norm=norm)
    assert "is 2 at most (step 41) and 1.5 at step 91, otherwise about 0.09" in text


def test_a_share_of_groups_that_moves_in_quarters_rests_on_four():
    assert "moves in steps of 1/4: a row rests on 4 groups" in told("nohup.out")
    shares = np.random.default_rng(1).integers(0, 65, 60) / 64
    assert "rests on" not in said(reward=around(0.5, 60), zero_std_share=shares)


def test_passes_that_a_row_counts_in_words_are_read():
    assert "10 passes over the data" in told("stdout_rloo_v7.txt")


def test_memory_that_grows_in_steps_and_moves_nothing_is_no_event():
    memory = np.where(np.arange(120) < 12, 68.4, 70.3)
    assert main_event(log(reward=around(0.5, 120), perf__memory_gb=memory)) is None
    rate = np.where(np.arange(120) < 60, 1e-6, 3e-6)
    assert main_event(log(reward=around(0.5, 120), learning_rate=rate)) is not None


def test_a_slow_bend_far_beyond_its_noise_is_told_however_alike_its_rows_are():
    bend = np.interp(np.arange(160), [0, 50, 100, 150, 159], [0.35, 0.5, 0.53, 0.05, 0.04])
    text = said(reward=around(bend, 160, 0.03))
    assert "it rises from 0.3" in text and "then falls to 0.0" in text


@pytest.mark.parametrize("name", sorted(json.loads((TENTH / "readings.json").read_text())))
def test_every_log_of_the_round_has_its_first_answer(name):
    assert (TENTH / "first" / f"{name}.txt").is_file()
