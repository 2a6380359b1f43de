"""What an eighth round of logs showed: each mended in the general mechanism, on made numbers and on
the log that showed it (docs/real-logs/eighth)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Level
from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event
from flatline.trace.importers import open_log
from flatline.trace.importers.resolve import plain, resolve
from tests.test_fifth_logs import around, log, same_noise  # noqa: F401

EIGHTH = Path(__file__).parents[1] / "docs" / "real-logs" / "eighth"


def report_of(name):
    return diagnose(open_log(EIGHTH / name))


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


# Blocks under headings.


@pytest.mark.parametrize(
    "heading",
    [
        *("========= Step {}/40 =========", "--- Iteration {} ---", "## Update #{}", "Step {}:"),
        *("\x1b[1m Learning iteration {}/40 \x1b[0m", "[ step {} of 40 ]"),
    ],
)
@pytest.mark.parametrize("line", ["  • {}: {}", "{} = {}", "   - {}: {}"])
def test_a_log_of_blocks_of_numbers_under_a_heading_is_read(tmp_path, heading, line):
    numbers = [("loss", -0.01), ("mean reward", 0.5), ("KL", "1.0e-3"), ("grad norm", 0.2)]
    blocks = [
        "\n".join([heading.format(step), "Preparing batch...", *(line.format(*n) for n in numbers)])
        for step in range(1, 13)
    ]
    trace = open_log(written(tmp_path, "run.log", "\n\n".join(blocks)))
    assert trace.steps["step"].tolist() == list(range(1, 13))
    assert set(trace.steps["reward"]) == {0.5} and set(trace.steps["grad_norm"]) == {0.2}


def test_sections_of_a_block_keep_what_they_name_apart(tmp_path):
    block = (
        "=== Step {}/9 ===\nTraining Results:\n • Loss: 0.1\n • Avg Reward: 0.4\n"
        " • Mean Generation Length: 1,024.5 tokens\n"
        "Timing:\n • Total step time: 12.5s\n • generation: 6.25s (50.0%)\n"
        "Validation Results:\n • Accuracy: 37.5%\n"
    )
    trace = open_log(written(tmp_path, "run.out", "".join(map(block.format, range(1, 10)))))
    at_first = {
        name: float(trace.steps[name][0])
        for name in ("reward", "completion_length", "seconds", "seconds_sampling", "heldout_reward")
    }
    assert list(at_first.values()) == [0.4, 1024.5, 12.5, 6.25, 0.375]
    assert trace.settings["max_steps"] == 9


def test_what_a_model_wrote_between_the_blocks_is_no_metric(tmp_path):
    block = "=== Step {0} ===\nanswer_{0}: 42\nloss: 0.1\nreward: 0.4\nkl: 0.01\nentropy: 0.5\n"
    trace = open_log(written(tmp_path, "run.log", "".join(map(block.format, range(1, 10)))))
    assert not [name for name in trace.metric_names if "answer" in name]


def test_the_console_of_nemo_rl_is_read():
    trace = open_log(EIGHTH / "nemo_rl_driver.log")
    assert len(trace.steps["step"]) == 200 and trace.steps["reward"][0] == 0.4004
    score = trace.steps["heldout_reward"]
    assert trace.steps["step"][np.isfinite(score)].tolist() == list(range(10, 201, 10))


# Histories of single metrics.


def test_an_object_of_histories_is_read_in_either_shape(tmp_path):
    steps = range(1, 21)
    as_points = [{"step": at, "value": at / 100, "timestamp": 0} for at in steps]
    as_pairs = [[at, 0.001 * at] for at in steps]
    text = json.dumps({"run_id": "x", "metrics": {"reward": as_points, "kl": as_pairs}})
    trace = open_log(written(tmp_path, "metrics.json", text))
    assert trace.steps["step"].tolist() == list(steps)
    assert trace.steps["reward"][-1] == 0.2 and trace.steps["kl"][-1] == 0.02
    bare = open_log(written(tmp_path, "bare.json", json.dumps({"reward": as_points})))
    assert bare.steps["reward"].tolist() == trace.steps["reward"].tolist()


@pytest.mark.parametrize("clock", [True, False])
def test_of_steps_that_were_logged_twice_the_later_ones_count(tmp_path, clock):
    logged = [*range(1, 38), *range(31, 61)]

    def point(at, step, value):
        stamp = {"timestamp": 1_759_000_000_000 + 90_000 * at} if clock else {}
        return {"step": step, "value": value, **stamp}

    metrics = {
        "reward": [point(at, step, 0.001 * at) for at, step in enumerate(logged)],
        "eval/acc": [point(at, s, 0.5) for at, s in enumerate(logged) if s in (20, 40, 60)],
    }
    trace = open_log(written(tmp_path, "m.json", json.dumps({"metrics": metrics})))
    assert trace.steps["step"].tolist() == list(range(1, 61))
    assert trace.steps["reward"].tolist()[30] == pytest.approx(0.037)
    assert np.isfinite(trace.metric("eval/acc")).sum() == 3
    assert any("back from step 37 to step 31" in note for note in trace.run["notes"])


def test_a_clean_resume_is_told_with_its_pause():
    report = report_of("mlflow_metrics.json")
    told = " ".join([*report.caveats, *report.remarks])
    assert "goes back from step 137 to step 131" in told
    assert "The 7 steps that were made twice are alike: a reward of 0.593 and 0.582." in told
    assert "Step 131 came 2.67 hours after the row before" in told
    assert "`eval.gsm_plus_acc` is 0.417 at first, 0.749 at last" in told


def test_names_that_were_not_known_are():
    assert resolve(["rew", "gnorm"]).aliases["reward"] == "rew"
    assert resolve(["groups_all_same"]).aliases == {"zero_std_share": "groups_all_same"}
    assert plain("eval.gsm_plus_acc") == "eval/gsm_plus_acc"


# How a log ends.

ROWS = "".join(
    f"(Runner pid=7) step:{at} - critic/score/mean:{0.3 + at / 500 + (at % 3) / 100} - "
    "actor/entropy:0.5 - actor/grad_norm:0.1\n"
    for at in range(1, 61)
)


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: no prompts are left",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: device-side assert triggered",
        "slurmstepd: error: *** JOB 17 CANCELLED DUE TO TIME LIMIT ***",
        "Killed",
    ],
)
@pytest.mark.parametrize("before", ["", "(Runner pid=7) ", "[rank0]: "])
def test_a_log_that_ends_with_an_error_is_told_so_first(tmp_path, error, before):
    end = f"{before}Traceback (most recent call last):\n{before}{error}\n"
    report = diagnose(open_log(written(tmp_path, "run.log", ROWS + end)))
    assert report.trend.rises
    told = f"The log ends at step 60 with an error: `{error}`."
    assert report.answer.headline == told and told in report.summary
    assert report.outcome is Outcome.UNEXPLAINED
    assert "healthy" not in str(report)


def test_the_error_of_the_process_that_failed_is_quoted_and_not_that_of_its_launcher(tmp_path):
    end = "[rank3]: IndexError: list index out of range\n"
    end += "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    report = diagnose(open_log(written(tmp_path, "run.log", ROWS + end)))
    assert "`IndexError: list index out of range`" in report.answer.headline


def test_an_error_is_quoted_so_that_no_terminal_obeys_it(tmp_path):
    report = diagnose(open_log(written(tmp_path, "run.log", ROWS + "KeyError: '\x1b[2J`x`'\n")))
    assert "`KeyError: '\\x1b[2J'x''`" in report.answer.headline


@pytest.mark.parametrize(
    "log_text",
    [
        "ValueError: judge gave no number\n" + ROWS + "ValueError: judge gave no number\n",
        ROWS + "Exception ignored in: <function f>\nAttributeError: 'NoneType' object\n",
        ROWS + "ConnectionError: no answer\n" + "still at it\n" * 80,
        ROWS + "ConnectionError: no answer\nretry 1 of 5\n",
        ROWS.replace("step:1 ", "Error: bad luck\nstep:1 "),
    ],
)
def test_an_error_that_did_not_end_the_run_is_none(tmp_path, log_text):
    report = diagnose(open_log(written(tmp_path, "run.log", log_text)))
    assert report.outcome is Outcome.HEALTHY and not report.troubles


def test_an_error_after_the_last_planned_step_is_none(tmp_path):
    rows = "".join(
        f"[{at}/60] loss=0.1 reward={0.3 + at / 500 + (at % 3) / 100} kl=0.01 lr=1e-6\n"
        for at in range(1, 61)
    )
    report = diagnose(open_log(written(tmp_path, "run.log", rows + "OSError: broken pipe\n")))
    assert not report.troubles


def test_a_run_that_died_is_not_called_healthy():
    report = report_of("verl_dapo.log")
    assert report.answer.headline.startswith(
        "The log ends at step 230 with an error: `ValueError: num_gen_batches=10 >= max_num"
    )


# Gradients that are no number.


def overflowing(bad, rows=240, **more):
    bad = np.asarray(bad)
    norm = np.where(bad, np.inf, around(0.4, rows, 0.02))
    return log(reward=around(np.linspace(0.4, 0.55, rows), rows), grad_norm=norm, **more)


def ever_more(rows=240):
    """In none of the first rows, and in every second one at the end."""
    at = np.arange(rows)
    return (at > rows / 3) & (at % np.maximum(2, 12 - at // 20) == 0)


def test_gradients_that_overflow_ever_more_often_are_the_event():
    bad = ever_more()
    scale = 65536.0 / 2.0 ** np.minimum(np.cumsum(bad), 16)
    event = main_event(overflowing(bad, amp__skipped=np.cumsum(bad), amp__scale=scale))
    assert event.text.startswith("Your gradient is infinite or NaN ever more often: 0 of 80 rows")
    assert f"`amp/skipped` counts up to {bad.sum()}" in event.text
    assert "`amp/scale`, the scale of the loss, sinks from 65,536 to 1 (first at step" in event.text


def test_gradients_that_overflow_now_and_then_or_from_one_row_on_are_no_such_event():
    now_and_then = np.arange(240) % 12 == 0  # a scaler tries a larger scale again and again
    assert main_event(overflowing(now_and_then)) is None
    assert main_event(overflowing(np.arange(240) > 150)) is None  # H26 tells that


def test_a_log_of_overflowing_gradients_begins_with_them():
    report = report_of("grpo_fp16_stdout.txt")
    assert "Your gradient is infinite or NaN ever more often: 1 of 107" in report.answer.headline
    assert "sinks from 65,536 to 1 (first at step 230)" in report.answer.headline
    assert "looks healthy" not in str(report)


# A setting that jumps.


def rated(rate, reward=0.5, rows=200):
    return log(reward=around(reward, rows), learning_rate=np.asarray(rate), kl=around(0.1, rows))


def warmed_up(rows=200, to=5e-7):
    return to * np.minimum(np.arange(1, rows + 1) / 12, 1)


@pytest.mark.parametrize("decays", [False, True])
def test_a_rate_that_jumps_after_its_warm_up_is_told_as_a_jump(decays):
    rate = warmed_up() * (np.linspace(1, 0.5, 200) if decays else 1)
    rate[120:] *= 8
    trace = rated(rate)
    assert f"({'7.97' if decays else '8'} times as high)" in main_event(trace).text
    assert main_event(trace).text.startswith("At step 121 your learning rate goes from ")
    assert "The learning rate jumps from" in " ".join(remarks_of(trace))


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
    trace = rated(rate)
    assert "jumps" not in " ".join(remarks_of(trace))
    assert main_event(trace) is None


def test_a_jump_of_the_rate_is_told_under_the_cause_that_was_found():
    report = report_of("openrlhf_ppo.log")
    assert report.causes[0].hypothesis == "H03"
    [event] = [line.text for line in report.answer.lines if line.label == "event"]
    assert event.startswith(
        "At step 151 your learning rate goes from 5e-07 to 4e-06 (8 times as high); at the same "
        "step the share of clipped tokens rises from 4% to 13%"
    )
    assert "does not jump there" in event and event in report.summary
    told = " ".join([*report.remarks, *report.caveats])
    assert "The learning rate jumps from 5e-07 to 4e-06 at step 151." in told
    assert "until step 151" not in told
    assert "Before step 151 the log says: `Load checkpoint from ./ckpt/8b-rlhf/global" in told


def test_a_checkpoint_that_is_loaded_again_and_again_is_not_told(tmp_path):
    line = "Load checkpoint from ckpt/last\n"
    rows = ROWS.splitlines(keepends=True)
    once = "".join([*rows[:30], line, *rows[30:]])
    often = "".join([row + line for row in rows])
    notes = [open_log(written(tmp_path, "a.log", text)).run["notes"] for text in (once, often)]
    assert notes == [["Before step 31 the log says: `Load checkpoint from ckpt/last`."], []]


def test_a_rate_far_below_what_is_usual_is_told_so():
    assert "100 times below the range that is usual" in " ".join(
        remarks_of(rated(warmed_up(to=1e-9)))
    )
    assert "usual" not in " ".join(remarks_of(rated(warmed_up(to=5e-8))))


# A reward on another scale.


def scaled(factor=0.2, of_spread=None, after=(2.1, 1.1), rows=240, at=130, **more):
    def by(other):
        return np.where(np.arange(rows) < at, 1.0, other)

    level = np.interp(np.arange(rows), [0, at - 30, at - 1, at, rows], [0.6, 2.1, 2.1, *after])
    columns = {
        "reward": around(level, rows, 0.05) * by(factor),
        "objective/scores_std": around(1.08, rows, 0.04) * by(of_spread or factor),
        "entropy": around(np.linspace(1.2, 1.0, rows), rows, 0.01),
        "completion_length": around(200.0, rows, 3.0),
    }
    return log(**columns | more)


@pytest.mark.parametrize("factor", [0.2, 0.5, 3.0])
def test_a_reward_and_a_spread_that_are_multiplied_by_one_number_are_on_another_scale(factor):
    trace = scaled(factor)
    report = diagnose(trace)
    assert main_event(trace).text.startswith("At step 131 the scale of your reward changes: ")
    assert f"both by a factor of {factor:g}" in main_event(trace).text
    assert report.trend.text.startswith("Since step 131 the reward is on another scale (")
    assert "Up to there, the training reward rises" in report.trend.text
    assert "From there on, the training reward falls" in report.trend.text
    assert report.trend.falls


def test_a_reward_that_goes_on_rising_on_its_new_scale_is_no_fall():
    trend = diagnose(scaled(0.2, after=(2.1, 3.5))).trend
    assert trend.rises and "From there on, the training reward rises" in trend.text


def test_what_changes_with_the_policy_is_no_change_of_the_scale():
    rows, at = 240, np.arange(240)
    jumps = around(np.where(at < 130, 1.2, 0.4), rows, 0.01)
    for trace in (
        scaled(0.2, of_spread=0.6),  # fewer answers are right
        scaled(0.2, entropy=jumps),  # the policy collapses
        scaled(1.0),
    ):
        assert "scale" not in getattr(main_event(trace), "text", "")
        assert "scale" not in diagnose(trace).trend.text


def test_without_a_column_that_shows_the_policy_nothing_is_said_of_a_scale():
    trace = scaled()
    alone = log(reward=trace.metric("reward"), scores__std=trace.metric("objective/scores_std"))
    assert "scale of your reward" not in getattr(main_event(alone), "text", "")


def test_a_reward_that_rose_and_fell_is_not_said_to_have_shown_no_rise():
    report = report_of("openrlhf_ppo.log")
    collapse = next(one for one in report.findings if one.hypothesis == "H43")
    assert "rises, then falls" in report.trend.text
    assert collapse.text.endswith("No lasting rise of the reward can be seen.")


def test_a_reward_on_another_scale_is_no_smoothed_curve_and_no_rate_that_is_too_low():
    findings = report_of("wandb_export_2025-09-18.csv").findings
    rate, noise = (next(f for f in findings if f.hypothesis == code) for code in ("H24", "H47"))
    assert rate.level is noise.level is Level.OK
    assert noise.text.startswith("Before step 171, where the reward jumps: A change of")
    assert noise.text.endswith("; +0.915 was seen.")


def test_a_log_whose_reward_is_rescaled_is_told_so():
    trace = open_log(EIGHTH / "wandb_export_2025-09-18.csv")
    text = main_event(trace).text
    assert text.startswith("At step 171 the scale of your reward changes: your reward goes from 2.")
    assert "both by a factor of 0.2, while the entropy" in text
    assert "From there on, the training reward falls by -0.14" in diagnose(trace).trend.text


# What a step costs.


def costly(folder, batches):
    rows = len(batches)
    columns = {
        "reward": around(np.linspace(0.2, 0.6, rows), rows),
        "train/num_gen_batches": batches,
        "timing_s/gen": around(80 * batches, rows, 3.0),
        "timing_s/update": around(20.0, rows, 0.5),
    }
    columns["timing_s/step"] = columns["timing_s/gen"] + columns["timing_s/update"]
    listed = [{"step": at, **{n: float(v[at]) for n, v in columns.items()}} for at in range(rows)]
    text = "\n".join(map(json.dumps, listed))
    return " ".join(remarks_of(open_log(written(folder, "run.jsonl", text))))


def test_batches_that_a_step_samples_and_its_seconds_are_told_where_they_grow(tmp_path):
    told = costly(tmp_path, np.round(np.linspace(2, 9, 120)))
    assert (
        "It takes more and more sampled batches to fill a step: `train/num_gen_batches` is 2"
        in told
    )
    assert "times as long at the end: " in told and "most of it `timing_s/gen` (" in told
    assert told.count("num_gen_batches") == 1 and "The time of a step rises" not in told
    steady = costly(tmp_path, around(5, 120, 0.5).round())
    assert "ever more batches" not in steady and "as long at the end" not in steady


def test_a_log_of_dynamic_sampling_tells_both_before_its_evaluations():
    told = report_of("verl_dapo.log").remarks
    assert told[1].startswith("It takes more and more sampled batches to fill a step")
    assert told[2].startswith("A step takes 4.88 times as long at the end: 306 s in the first 10")
    assert told[2].endswith("most of it `timing_s/gen` (190 to 1,319).")


def test_a_part_of_a_step_that_is_no_longer_done_is_the_event():
    event = main_event(open_log(EIGHTH / "nemo_rl_driver.log"))
    assert event.text.startswith("At step 109 `Timing/prepare_for_generation/transfer_and_update_")
    assert "falls from 7.84 to 0.04 and stays there" in event.text
    assert "since then `Generation KL Error` rises from 0.0015 to 0.3" in event.text


@pytest.mark.parametrize("until", [6, 114])
def test_a_part_that_takes_no_time_now_and_then_or_after_the_first_rows_is_none(until):
    rows = 120
    part = np.where(np.arange(rows) < until, around(8.0, rows, 0.1), 0.01)
    part[60] = 8.0
    trace = log(reward=around(0.5, rows), timing_s__sync=part, seconds=around(60.0, rows))
    assert main_event(trace) is None


# Steps under any name.


def counted(rows, **more):
    return "\n".join(json.dumps({"pay": 0.5, "lap": at, **more}) for at in range(rows))


def test_the_one_column_that_counts_the_rows_is_the_step(tmp_path):
    text = '{"seats": 400, "word_cap": 3000}\n' + counted(40)
    trace = open_log(written(tmp_path, "run.jsonl", text))
    assert trace.steps["step"].tolist() == list(range(40)) and not trace.warnings
    assert trace.run["notes"][0] == "`lap` is the step: it counts the rows."
    text = counted(40) + '\n{"eval/acc": 0.25}'
    trace = open_log(written(tmp_path, "evaluated.jsonl", text))
    assert trace.metric("eval/acc")[-1] == 0.25 and trace.steps["step"][-1] == 39


def test_no_other_column_is_and_none_of_a_few_rows(tmp_path):
    for text in (counted(10), counted(40).replace('"lap": 20', '"lap": 25')):
        trace = open_log(written(tmp_path, "run.jsonl", text))
        assert trace.run["notes"][0] == "The log names no step: its rows are numbered from 1."


# Evaluations in lines of their own.


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("  >> eval step 20: gsm_hard acc 0.410 (n=600) len 640", "eval/gsm_hard/acc", 0.41),
        ("Evaluation at step 20 | accuracy: 41.0% | len 640", "eval/accuracy", 0.41),
        ("[validation] global_step=20 math pass@1=0.41", "eval/math/pass@1", 0.41),
    ],
)
def test_an_evaluation_in_a_line_of_its_own_is_of_the_step_that_it_names(
    tmp_path, line, name, value
):
    trace = open_log(written(tmp_path, "run.log", ROWS + line + "\n"))
    assert trace.metric(name)[trace.steps["step"] == 20].tolist() == [value]


def test_a_line_about_an_evaluation_without_a_score_is_none(tmp_path):
    line = "eval step 20: writing 5 files to out, took 12 s\n"
    trace = open_log(written(tmp_path, "run.log", ROWS + line))
    assert not [one for one in trace.metric_names if one.startswith("eval")]


def test_evaluations_that_become_one_number_are_told_so():
    told = " ".join(report_of("nemo_rl_driver.log").remarks)
    assert "9 of its last 10 are exactly 0.555: perhaps one policy was evaluated again" in told
    rounded = around(0.5, 20, 0.01).round(2)  # a small set of problems has few values
    reward = around(0.5, 20)
    assert "exactly" not in " ".join(remarks_of(log(reward=reward, eval__acc=rounded)))


def test_a_level_that_certainly_goes_on_rising_is_not_said_to_stay():
    told = " ".join(diagnose(open_log(EIGHTH.parent / "seventh" / "metrics_long.csv")).remarks)
    assert re.search(r"The share of groups with equal rewards rises from \d+% to 6\d%", told)
    assert "since about step" not in told.split("equal rewards")[1].split(".")[0]


def test_a_length_that_goes_up_by_a_tenth_and_comes_back_is_not_said_to_stay():
    told = report_of("wandb_export_2025-09-18.csv").remarks
    assert not any("Length (215 tokens)" in text for text in told)


def test_a_setting_that_was_warmed_up_is_not_told_beside_a_reward_that_falls():
    told = " ".join(report_of("openrlhf_ppo.log").remarks)
    assert "`critic_lr` is 9e-06 in all 219 rows since step 12;" in told
