"""The console output of a run, saved as text: rows of every shape, and how it ends."""

import time
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import diagnose
from flatline.errors import TraceError
from flatline.trace.importers import open_log

LOGS = Path(__file__).parents[1] / "docs" / "real-logs"
TRL = (
    "Loading weights: 100%\nSome weights, among them lm_head, are new\n"
    "  1%|▏         | 1/80 [00:02<03:00]"
    "{'loss': '0.01', 'grad_norm': 'nan', 'reward': '0.1', 'epoch': '0.01'}\n"
    "completion: {'answer': 'the model wrote this', 'reward': 9, 'loss': 9, 'kl': 9}\n"
    "{'loss': 0.02, 'grad_norm': 0.5, 'reward': -1e-05, 'epoch': 0.02}\n"
)
VERL = "(TaskRunner pid=31) step:{} - actor/entropy:0.31 - actor/lr:1e-06 - critic/score/mean:{}\n"
ROWS = "".join(
    f"(Runner pid=7) step:{at} - critic/score/mean:{0.3 + at / 500 + (at % 3) / 100} - "
    "actor/entropy:0.5 - actor/grad_norm:0.1\n"
    for at in range(1, 61)
)


@pytest.fixture
def read(tmp_path):
    def written(text, name="train.log"):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n", encoding="utf-8")
        return open_log(path)

    return written


def column(trace, name):
    return trace.steps[name].tolist()


@pytest.mark.parametrize("name", ["train.log", "nohup.out", "output"])
def test_rows_that_trl_prints_are_found_among_bars_and_samples(read, name):
    trace = read(TRL, name)
    assert column(trace, "reward") == [0.1, -1e-05]
    assert column(trace, "step") == [1, 2]
    assert trace.steps["grad_norm"][1] == 0.5
    assert trace.run["source"] == "import:printed"


def test_rows_that_verl_prints_keep_their_step(read):
    trace = read(VERL.format(7, "np.float64(0.25)") + VERL.format(8, 0.5))
    assert column(trace, "step") == [7, 8]
    assert column(trace, "reward") == [0.25, 0.5]
    assert column(trace, "learning_rate") == [1e-06, 1e-06]


def test_jsonl_without_its_ending_is_not_taken_for_print(read):
    rows = '{"step": 1, "reward": 0.1, "loss": 2.0}\n{"step": 2, "reward": 0.2, "loss": 1.0}\n'
    assert read(rows, "metrics").run["source"] != "import:printed"


@pytest.mark.parametrize(
    "line", ["a" + " " * 60_000, "a/" * 30_000, "step 1 " * 9_000, "a | " * 15_000]
)
def test_long_lines_that_are_no_row_take_no_time(read, line):
    began = time.perf_counter()
    with pytest.raises(TraceError):
        read(f"step 1 | {line}\n" * 20)
    assert time.perf_counter() - began < 10


def test_what_a_model_writes_is_no_row(read):
    with pytest.raises(TraceError, match="which no log does"):
        read(
            "step: done - all good\nStep 1: x = 3, y = 4, z = 5 | so a: 1 | b: 2 | c: 3\n"
            "[1/3] a=1 b=2 c=3\nlevel=info step=2 msg=done\n"
        )
    block = "=== Step {0} ===\nanswer_{0}: 42\nloss: 0.1\nreward: 0.4\nkl: 0.01\nentropy: 0.5\n"
    trace = read("".join(map(block.format, range(1, 10))))
    assert not [name for name in trace.metric_names if "answer" in name]


def test_rows_of_two_processes_are_joined_by_their_step(read):
    rows = (
        f"09:13:24 [rollout] Step {at} | Time: 44.6s | Reward: 0.{at}5 | Async Level: 1\n"
        f"09:13:25 [trainer] Step {at} | Time: 43.9s | Loss: -1.5e-3 | Grad. Norm: 0.1 | "
        "LR: 1.00e-06 | MFU: 30.4% | Peak Mem.: 68.5/79.1 GiB (86.5%)\n"
        for at in range(3)
    )
    trace = read("09:12:31 [trainer] INFO Starting in World(world_size=8)\n" + "".join(rows))
    assert column(trace, "step") == [0, 1, 2]
    assert column(trace, "reward") == [0.05, 0.15, 0.25]
    assert column(trace, "loss") == [-1.5e-3] * 3
    assert trace.metric("rollout/Time_s").tolist() == [44.6] * 3
    assert trace.metric("MFU")[0] == pytest.approx(0.304)
    assert not trace.run["notes"] and not trace.warnings


@pytest.mark.parametrize(
    "step",
    [
        *("[  {}0/1000]", "iter {}0:", "Step {}0 |", "step={}0", "it {}0/1000 |"),
        "ts=2025-1T9Z step={}0",
    ],
)
def test_names_and_numbers_with_a_sign_of_equality_are_rows(read, step):
    lines = [f"{step.format(at)} loss=+0.01 reward=0.{at} kl=2e-07 t=215.2s" for at in (1, 2, 3)]
    trace = read(["loaded a model", *lines, "saved checkpoint to ckpt/step_50"])
    assert column(trace, "step") == [10, 20, 30]
    assert column(trace, "reward") == [0.1, 0.2, 0.3]
    assert trace.metric("t").tolist() == [215.2] * 3


def test_rows_that_a_console_broke_are_whole_again(read):
    row = "{'loss': 0.01, 'grad_norm': 0.2, 'reward': 0.%d1, 'kl': 0.003, 'epoch': 0.0%d}"
    lines = []
    for at in range(1, 7):
        text = row % (at, at)
        lines += [text[:40], text[40:]] if at > 3 else [text]
        lines.append(f" {at}%|█| {at}/6 [00:0{at}<00:10, 2.00s/it]")
    trace = read(lines)
    assert column(trace, "reward") == [0.11, 0.21, 0.31, 0.41, 0.51, 0.61]
    assert trace.settings["max_steps"] == 6


def test_what_only_looks_like_a_broken_row_hides_no_row_behind_it(read):
    rows = [f"[ {at}/9] loss=0.1 reward=0.{at} kl=0.01" for at in range(1, 6)]
    assert column(read(["config {'lr': 1e-6,", *rows]), "step") == [1, 2, 3, 4, 5]


def test_a_table_under_a_header_with_a_logger_before_it_is_read(read):
    lines = ["10:00 | INFO | run:1 - starting", "10:01 | INFO | t:1 -  step  score  kl  len  win"]
    lines += [f"10:02 | INFO | t:2 -  {at}  0.{at}  0.01  40{at}  -" for at in range(1, 5)]
    trace = read([*lines, "10:03 | WARNING | judge: 140 of 256 missing"])
    assert column(trace, "reward") == [0.1, 0.2, 0.3, 0.4]
    assert column(trace, "completion_length") == [401, 402, 403, 404]


# Blocks under headings.


@pytest.mark.parametrize(
    "heading",
    [
        *("========= Step {}/40 =========", "--- Iteration {} ---", "## Update #{}", "Step {}:"),
        *("\x1b[1m Learning iteration {}/40 \x1b[0m", "[ step {} of 40 ]"),
    ],
)
@pytest.mark.parametrize("line", ["  • {}: {}", "{} = {}", "   - {}: {}"])
def test_a_log_of_blocks_of_numbers_under_a_heading_is_read(read, heading, line):
    numbers = [("loss", -0.01), ("mean reward", 0.5), ("KL", "1.0e-3"), ("grad norm", 0.2)]
    inside = "\n".join(line.format(*each) for each in numbers)
    trace = read(f"{heading.format(step)}\nPreparing batch...\n{inside}\n" for step in range(1, 13))
    assert column(trace, "step") == list(range(1, 13))
    assert set(trace.steps["reward"]) == {0.5} and set(trace.steps["grad_norm"]) == {0.2}


def test_sections_of_a_block_keep_what_they_name_apart(read):
    block = (
        "=== Step {}/9 ===\nTraining Results:\n • Loss: 0.1\n • Avg Reward: 0.4\n"
        " • Mean Generation Length: 1,024.5 tokens\n"
        "Timing:\n • Total step time: 12.5s\n • generation: 6.25s (50.0%)\n"
        "Validation Results:\n • Accuracy: 37.5%\n"
    )
    trace = read("".join(map(block.format, range(1, 10))), "run.out")
    names = ("reward", "completion_length", "seconds", "seconds_sampling", "heldout_reward")
    assert [float(trace.steps[name][0]) for name in names] == [0.4, 1024.5, 12.5, 6.25, 0.375]
    assert trace.settings["max_steps"] == 9


# Evaluations.


@pytest.mark.parametrize(("log", "rows", "evaluated"), [
    ("sixth/slurm-48213.out", 160, [40, 80, 120, 160]),
    ("seventh/reasoning_async.log", 300, list(range(0, 300, 25))),
    ("eighth/nemo_rl_driver.log", 200, list(range(10, 201, 10))),
])  # fmt: skip
def test_evaluations_between_rows_are_of_the_step_that_they_belong_to(log, rows, evaluated):
    trace = open_log(LOGS / log)
    assert len(trace.steps) == rows
    assert trace.steps["step"][np.isfinite(trace.steps["heldout_reward"])].tolist() == evaluated


def test_two_processes_without_names_print_no_row_twice():
    trace = open_log(LOGS / "sixth" / "orchestrator_and_trainer.log")
    assert not any("more than once" in note for note in trace.run["notes"])
    assert np.isfinite(trace.metric("Time_s (beside Loss)")).sum() == 120
    assert np.isfinite(trace.steps["heldout_reward"]).sum() == 9


@pytest.mark.parametrize(("line", "name", "value"), [
    ("  >> eval step 20: gsm_hard acc 0.410 (n=600) len 640", "eval/gsm_hard/acc", 0.41),
    ("Evaluation at step 20 | accuracy: 41.0% | len 640", "eval/accuracy", 0.41),
    ("[validation] global_step=20 math pass@1=0.41", "eval/math/pass@1", 0.41),
])  # fmt: skip
def test_an_evaluation_in_a_line_of_its_own_is_of_the_step_that_it_names(read, line, name, value):
    trace = read(ROWS + line + "\n")
    assert trace.metric(name)[trace.steps["step"] == 20].tolist() == [value]


def test_a_line_about_an_evaluation_without_a_score_is_none(read):
    trace = read(ROWS + "eval step 20: writing 5 files to out, took 12 s\n")
    assert not [one for one in trace.metric_names if one.startswith("eval")]


def test_an_evaluation_after_the_row_of_a_step_is_of_the_step_that_begins_next(read):
    lines = []
    for at in range(12):
        if at % 4 == 0:
            lines.append(f"10:00:{at:02} SUCCESS Evaluated aime in 4.10s (Avg@4=0.{at + 10})")
        lines.append(f"10:00:{at:02}    INFO Starting orchestrator step {at}")
        lines.append(f"10:01:{at:02} SUCCESS Step {at} | Time: 7.3s | Reward: 0.2188 | Lag: 1")
    trace = read(lines)
    known = np.isfinite(trace.steps["heldout_reward"])
    assert trace.steps["step"][known].tolist() == [0, 4, 8]


@pytest.mark.parametrize(("section", "first"), [("Validation Results", 0), ("Configuration", 1)])
def test_an_evaluation_before_the_first_step_is_of_step_0_and_settings_there_are_none(
    read, section, first
):
    head = f"Learning rate: 0.1\nBatch size: 8\n\n{section}:\n  • Accuracy: 0.25\n"
    block = "=== Step {}/9 ===\nTraining Results:\n • Loss: 0.1\n • Avg Reward: 0.4\n"
    later = "Validation Results:\n • Accuracy: 0.5\n"
    trace = read(head + "".join(block.format(step) + later for step in range(1, 10)))
    assert column(trace, "step") == list(range(first, 10))
    assert trace.metric("Validation/Accuracy")[0] == (0.5 if first else 0.25)


# How a log ends.


@pytest.mark.parametrize("error", [
    "ValueError: no prompts are left",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: CUDA error: device-side assert triggered",
    "slurmstepd: error: *** JOB 17 CANCELLED DUE TO TIME LIMIT ***",
    "Killed",
])  # fmt: skip
@pytest.mark.parametrize("before", ["", "(Runner pid=7) ", "[rank0]: "])
def test_a_log_that_ends_with_an_error_is_told_so_first_and_is_not_healthy(read, error, before):
    end = f"{before}Traceback (most recent call last):\n{before}{error}\n"
    report = diagnose(read(ROWS + end))
    assert report.trend.rises and report.outcome is Outcome.UNEXPLAINED
    assert f"at step 60 with an error: `{error}`" in report.answer.headline


@pytest.mark.parametrize(
    ("end", "quoted"),
    [
        (
            "[rank3]: IndexError: list index out of range\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            "`IndexError: list index out of range`",  # and not that of its launcher
        ),
        ("KeyError: '\x1b[2J`x`'\n", "`KeyError: '\\x1b[2J'x''`"),  # no terminal obeys it
    ],
)
def test_an_error_is_quoted_from_the_process_that_failed_and_escaped(read, end, quoted):
    assert quoted in diagnose(read(ROWS + end)).answer.headline


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: judge gave no number\n" + ROWS + "ValueError: judge gave no number\n",
        ROWS + "Exception ignored in: <function f>\nAttributeError: 'NoneType' object\n",
        ROWS + "ConnectionError: no answer\n" + "still at it\n" * 80,
        ROWS + "ConnectionError: no answer\nretry 1 of 5\n",
        ROWS.replace("step:1 ", "Error: bad luck\nstep:1 "),
        # after the last planned step
        ROWS.replace("(Runner pid=7) step:", "[").replace(" - critic/score/mean:", "/60] reward=")
        .replace(" - actor/entropy:", " entropy=").replace(" - actor/grad_norm:", " grad_norm=")
        + "OSError: broken pipe\n",
    ],
)  # fmt: skip
def test_an_error_that_did_not_end_the_run_is_none(read, text):
    report = diagnose(read(text))
    assert report.outcome is Outcome.HEALTHY and not report.troubles


def test_a_checkpoint_that_is_loaded_once_is_told_and_one_again_and_again_is_not(read):
    line = "Load checkpoint from ckpt/last\n"
    rows = ROWS.splitlines(keepends=True)
    once = read("".join([*rows[:30], line, *rows[30:]])).run["notes"]
    assert len(once) == 1 and "step 31" in once[0] and line.strip() in once[0]
    assert read("".join(row + line for row in rows)).run["notes"] == []
