"""What an eighth round of logs showed: each mended in the general mechanism, on made numbers and on
the log that showed it (docs/real-logs/eighth)."""

import json
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import diagnose
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
    assert "Step 131 came 2.86 hours after the step before" in told
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
