"""The console output of a run, saved as text."""

import time

import pytest

from flatline.errors import TraceError
from flatline.trace.importers import open_log

TRL = (
    "Loading weights: 100%\nSome weights, among them lm_head, are new\n"
    "  1%|▏         | 1/80 [00:02<03:00]"
    "{'loss': '0.01', 'grad_norm': 'nan', 'reward': '0.1', 'epoch': '0.01'}\n"
    "completion: {'answer': 'the model wrote this', 'reward': 9, 'loss': 9, 'kl': 9}\n"
    "{'loss': 0.02, 'grad_norm': 0.5, 'reward': -1e-05, 'epoch': 0.02}\n"
)
VERL = (
    "(TaskRunner pid=31) step:7 - actor/entropy:0.31 - actor/lr:1e-06 - "
    "critic/score/mean:np.float64(0.25) - timing_s/step:41\n"
    "(TaskRunner pid=31) step:8 - actor/entropy:0.30 - actor/lr:1e-06 - "
    "critic/score/mean:0.5 - timing_s/step:41\n"
)


def saved(folder, text, name="train.log"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["train.log", "nohup.out", "output"])
def test_rows_that_trl_prints_are_found_among_bars_and_samples(tmp_path, name):
    trace = open_log(saved(tmp_path, TRL, name))
    assert trace.steps["reward"].tolist() == [0.1, -1e-05]
    assert trace.steps["step"].tolist() == [1, 2]
    assert trace.steps["grad_norm"][1] == 0.5
    assert trace.run["source"] == "import:printed"


def test_rows_that_verl_prints_keep_their_step(tmp_path):
    trace = open_log(saved(tmp_path, VERL))
    assert trace.steps["step"].tolist() == [7, 8]
    assert trace.steps["reward"].tolist() == [0.25, 0.5]
    assert trace.steps["learning_rate"].tolist() == [1e-06, 1e-06]


def test_text_without_a_row_is_still_refused_by_name(tmp_path):
    with pytest.raises(TraceError, match="which no log does"):
        open_log(saved(tmp_path, "step: done - all good\nnothing here\n"))


def test_jsonl_without_its_ending_is_not_taken_for_print(tmp_path):
    rows = '{"step": 1, "reward": 0.1, "loss": 2.0}\n{"step": 2, "reward": 0.2, "loss": 1.0}\n'
    assert open_log(saved(tmp_path, rows, "metrics")).run["source"] != "import:printed"


@pytest.mark.parametrize(
    "line", ["a" + " " * 60_000, "a/" * 30_000, "step 1 " * 9_000, "a | " * 15_000]
)
def test_long_lines_that_are_no_row_take_no_time(tmp_path, line):
    began = time.perf_counter()
    with pytest.raises(TraceError):
        open_log(saved(tmp_path, f"step 1 | {line}\n" * 20))
    assert time.perf_counter() - began < 10
