"""What a ninth round of logs showed: each mended in the general mechanism, on made numbers and on
the log that showed it (docs/real-logs/ninth)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.trend import trend_of
from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event, trend_told
from flatline.trace.importers import open_log
from tests.test_fifth_logs import around, log, same_noise  # noqa: F401

NINTH = Path(__file__).parents[1] / "docs" / "real-logs" / "ninth"


def told(name):
    return " ".join(remarks_of(open_log(NINTH / name)))


def said(**columns):
    return " ".join(remarks_of(log(**columns)))


# What is read.


def test_what_mlflow_saves_for_nan_and_infinity_is_no_number(tmp_path):
    rows = [f"grad_norm,{value},{step},{nan}" for step, (value, nan) in enumerate(
        [("0.5", 0), ("0", 1), ("1.7976931348623157e308", 0), ("0.4", 0)], 1)]  # fmt: skip
    rows += [f"reward,0.5,{step},0" for step in range(1, 5)]
    (tmp_path / "m.csv").write_text("\n".join(["key,value,step,is_nan", *rows]))
    norm = open_log(tmp_path / "m.csv").steps["grad_norm"]
    assert np.isfinite(norm).tolist() == [True, False, False, True]


def test_an_evaluation_before_the_first_step_is_of_step_0_and_settings_there_are_none(tmp_path):
    head = "Learning rate: 0.1\nBatch size: 8\n\nValidation Results:\n  • Accuracy: {}\n"
    block = "=== Step {}/9 ===\nTraining Results:\n • Loss: 0.1\n • Avg Reward: 0.4\n"
    later = "Validation Results:\n • Accuracy: 0.5\n"
    blocks = [block.format(step) + later for step in range(1, 10)]
    (tmp_path / "run.log").write_text(head.format(0.25) + "".join(blocks))
    trace = open_log(tmp_path / "run.log")
    assert trace.steps["step"].tolist() == list(range(10))
    assert trace.metric("Validation/Accuracy")[:2].tolist() == [0.25, 0.5]
    plain = head.replace("Validation Results", "Configuration").format(1)
    (tmp_path / "run.log").write_text(plain + "".join(blocks))
    assert open_log(tmp_path / "run.log").steps["step"].tolist() == list(range(1, 10))


def test_an_evaluation_under_a_name_of_ones_own_has_its_line():
    assert "`val_acc` is 0.202 at first, 0.353 at last" in told("metrics.jsonl")


# What is told.


def test_parts_that_simply_add_up_are_told_with_their_own_gains():
    text = told("unsloth_notebook_output.txt")
    assert "`match_format_exactly` +1.15, `match_format_approximately` +0.964" in text
    assert "3.25 `check_numbers`" not in text


def test_a_counter_of_passes_from_0_counts_the_one_that_is_made():
    assert "12 passes over the data" in told("tensorboard_scalars_wide.csv")
    assert "3 passes over the data" in said(
        reward=around(0.5, 90), epoch=np.repeat([0.0, 1.0, 2.0], 30)
    )


def test_a_fall_is_not_divided_by_the_spread_of_the_same_rewards():
    report = diagnose(open_log(NINTH / "wandb_history_grpo_judge.csv"))
    assert "divided by" not in report.summary
    assert "`judge_reward`, 0.619 before, is exactly 0 in 20 of 21 rows" in report.answer.headline


def test_what_a_policy_does_while_its_reward_is_spoilt_and_what_was_measured_then_is_told():
    event = main_event(open_log(NINTH / "wandb_history_grpo_judge.csv"))
    assert "the length of completions goes from 383 to 285 tokens meanwhile" in event.after
    assert "the held-out reward of step 140 (0.146) was taken in these steps" in event.after


def stepping(down=0.35, rows=160, at=80):
    return np.linspace(0.5, 0.7, rows) - down * (np.arange(rows) >= at)


def test_a_reward_that_steps_to_another_level_with_other_columns_is_an_event():
    length = 300 + 200 * (np.arange(160) >= 80)
    event = main_event(log(reward=around(stepping(), 160, 0.02),
                           completion_length=around(length, 160, 5)))  # fmt: skip
    assert event.text.startswith("At step 81 your reward falls from 0.")
    assert "the length of completions goes from" in event.text and "at last" in event.text
    alone = log(reward=around(stepping(), 160, 0.02), completion_length=around(300, 160, 5))
    assert main_event(alone) is None
    assert "At step 90 your reward falls" in diagnose(open_log(NINTH / "slime_train.log")).summary


def test_a_sampler_that_parts_from_its_trainer_is_an_event_with_what_stands_since():
    headline = diagnose(open_log(NINTH / "prime_rl_merged.log")).answer.headline
    assert "From about step 99 on `Mismatch KL` grows 87 times" in headline
    assert "since about then `Seq Length` (2,700) stands" in headline
    level = around(0.001, 120, 0.00005)
    assert main_event(log(reward=around(0.5, 120), mismatch_kl=level)) is None


def test_only_what_has_moved_when_the_reward_turns_is_told_to_have_moved_before():
    time = np.arange(200)
    reward = np.interp(time, [0, 120, 199], [0.3, 0.8, 0.4])
    early = np.interp(time, [0, 60, 199], [1.0, 1.0, 9.0])
    late = np.interp(time, [0, 118, 199], [1.0, 1.0, 9.0])
    text = said(
        reward=around(reward, 200, 0.02),
        ratio=around(early, 200, 0.05),
        other=around(late, 200, 0.05),
    )
    before = text.split("Before the reward turns down")[1].split(".\n")[0]
    assert re.match(
        r" \(around step 1\d\d\), `ratio` stays at about 1\S* only until step 6", before
    )
    assert "`other` stays" not in before
    assert "Before the reward turns down" not in told("rloo_run7_stdout.txt")


def test_a_reward_that_has_come_to_1_has_little_left_to_gain():
    assert "the last 62 steps had little left to gain" in told("nemo_rl_grpo_driver.log")
    stands = around(np.minimum(np.arange(120) / 40, 1) * 0.4 + 0.2, 120, 0.01)
    assert "little left to gain" not in said(reward=stands)


def test_how_far_training_and_evaluation_are_apart_is_told_at_both_ends():
    text = told("tensorboard_scalars_wide.csv")
    assert "The reward less the held-out reward is +0.03 at step 15 and +0.54 at step 360" in text


def test_the_limit_is_read_off_the_longest_completion_under_other_names():
    assert "The limit is 4096 tokens: 220 rows" in told("verl_grpo_qwen3_4b.log")


def test_a_last_level_of_the_trend_is_one_that_all_rows_since_then_show():
    trace = open_log(NINTH.parent / "eighth" / "grpo_fp16_stdout.txt")
    assert "Since step" not in trend_of(trace).text  # it ends at 0.497
    assert "Since step" not in trend_told(trace).text
    level = np.concatenate([np.linspace(0.3, 0.6, 40), np.full(160, 0.6)])
    assert "Since step" in trend_told(log(reward=around(level, 200, 0.06))).text


def test_the_spread_of_a_part_is_no_part():
    found = diagnose(open_log(NINTH / "unsloth_notebook_output.txt")).to_json()
    assert not any("/ std" in finding["text"] for finding in found["findings"])


def test_what_goes_far_is_not_said_to_be_unchanged():
    text = told("mlflow_metrics.csv")
    assert "`train/loss_scale` falls from 16,384 to 1" in text


@pytest.mark.parametrize("name", sorted(json.loads((NINTH / "readings.json").read_text())))
def test_every_log_of_the_round_has_its_first_answer(name):
    assert (NINTH / "first" / f"{name}.txt").is_file()
