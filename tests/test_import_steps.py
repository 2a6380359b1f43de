"""Which step a row of a log is of, and which rows of a run that was resumed count."""

import json
import math

import pytest

from flatline.trace.importers import open_log
from tests.log_files import jsonl, written

PROFILED = "profiling/Time taken: GRPOTrainer.compute_loss"


def numbered(steps, reward=0.5):
    return [{"step": step, "reward": reward} for step in steps]


def column(trace, name):
    return trace.steps[name].tolist()


def test_rows_without_a_step_are_numbered_from_one(tmp_path):
    trace = open_log(jsonl(tmp_path, {"reward": 0.5}, {"reward": 0.25}))
    assert column(trace, "step") == [1, 2]
    assert trace.run["notes"] == ["The log names no step: its rows are numbered from 1."]


def test_evaluation_rows_join_the_training_row_of_their_step(tmp_path):
    trace = open_log(jsonl(tmp_path, *numbered([1, 2]), {"eval_reward": 0.5, "step": 2}))
    assert column(trace, "step") == [1, 2]
    assert math.isnan(trace.steps["heldout_reward"][0])
    assert trace.steps["heldout_reward"][1] == 0.5
    assert trace.run["notes"] == []


def test_a_late_evaluation_is_no_resumed_run(tmp_path):
    rows = [{"step": step, "reward": 0.0, "epoch": 0.1 * step} for step in range(1, 5)]
    trace = open_log(jsonl(tmp_path, *rows, {"step": 2, "eval_reward": 1.0, "epoch": 0.25}))
    assert column(trace, "step") == [1, 2, 3, 4]
    assert trace.steps["heldout_reward"][1] == 1.0
    assert trace.run["notes"] == []


@pytest.mark.parametrize(
    ("runs", "steps", "rewards", "told"),
    [
        ([[1, 2], [2]], [1, 2], [0, 1], ["Step 2 occurs more than once", "1 row is overwritten"]),
        (
            [range(1, 7), range(4, 6)],
            [1, 2, 3, 4, 5],
            [0, 0, 0, 1, 1],
            ["back from step 6 to step 4", "3 earlier rows do not"],
        ),
        (
            [range(5, 45, 5), range(27, 50, 5)],  # resumed between two rows
            [5, 10, 15, 20, 25, 27, 32, 37, 42, 47],
            [0] * 5 + [1] * 5,
            ["from step 40 to step 27"],
        ),
        (
            [range(1, 31), range(20, 35), [30, 31]],
            list(range(1, 32)),
            [0] * 19 + [1] * 10 + [2] * 2,
            ["goes back 2 times, first from step 30 to step 20", "16 earlier rows do not"],
        ),
        (
            [range(1, 31), range(1, 5)],
            [1, 2, 3, 4],
            [1] * 4,
            ["begins again: after step 30 comes step 1", "30 earlier rows are left out"],
        ),
    ],
)
def test_of_a_resumed_run_the_later_rows_count_and_that_is_told_once(
    tmp_path, runs, steps, rewards, told
):
    rows = [row for reward, run in enumerate(runs) for row in numbered(run, reward)]
    trace = open_log(jsonl(tmp_path, *rows))
    assert (column(trace, "step"), column(trace, "reward")) == (steps, rewards)
    [note] = trace.run["notes"]
    assert all(one in note for one in told), note


@pytest.mark.parametrize("steps", [range(30, 0, -1), [7 * n % 31 for n in range(1, 31)]])
def test_rows_in_no_order_or_in_the_opposite_one_are_no_resumed_run(tmp_path, steps):
    trace = open_log(jsonl(tmp_path, *numbered(steps)))
    assert column(trace, "step") == list(range(1, 31))
    assert trace.run["notes"] == []


def test_where_no_step_is_named_the_epoch_says_that_the_run_was_resumed(tmp_path):
    rows = [{"epoch": n / 10, "reward": 0.0} for n in range(1, 8)]
    again = [{"epoch": n / 10, "reward": 1.0} for n in range(5, 10)]
    trace = open_log(jsonl(tmp_path, *rows, *again))
    assert column(trace, "reward") == [0.0] * 4 + [1.0] * 5
    assert "from step 7 to step 5" in " ".join(trace.run["notes"])


def test_an_epoch_of_few_digits_does_not_go_back(tmp_path):
    rows = [{"epoch": round(n / 300, 2), "reward": n / 10} for n in range(1, 31)]
    assert len(open_log(jsonl(tmp_path, *rows)).steps) == 30


@pytest.mark.parametrize("clock", [True, False])
def test_of_the_steps_of_a_history_that_were_logged_twice_the_later_ones_count(tmp_path, clock):
    logged = [*range(1, 38), *range(31, 61)]

    def point(at, step, value):
        stamp = {"timestamp": 1_759_000_000_000 + 90_000 * at} if clock else {}
        return {"step": step, "value": value, **stamp}

    metrics = {
        "reward": [point(at, step, 0.001 * at) for at, step in enumerate(logged)],
        "eval/acc": [point(at, s, 0.5) for at, s in enumerate(logged) if s in (20, 40, 60)],
    }
    trace = open_log(written(tmp_path, "m.json", json.dumps({"metrics": metrics})))
    assert column(trace, "step") == list(range(1, 61))
    assert trace.steps["reward"][30] == pytest.approx(0.037)
    assert sum(not math.isnan(one) for one in trace.metric("eval/acc")) == 3
    assert any("back from step 37 to step 31" in note for note in trace.run["notes"])


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_times_that_trl_sends_between_steps_are_no_unreadable_rows(tmp_path, kind):
    if kind == "csv":
        names = f"_step,train/global_step,train/reward,{PROFILED}"
        path = written(tmp_path, "log.csv", f"{names}\n0,,,0.5\n1,1,0.1,\n2,,,0.6\n3,2,0.2,\n")
    else:
        steps = [{"train/global_step": at, "train/reward": at / 10} for at in (1, 2)]
        times = [{PROFILED: 0.5, "_timestamp": 1.0}, {PROFILED: 0.6, "_timestamp": 2.0}]
        rows = [times[0], steps[0], times[1], steps[1]]
        path = jsonl(tmp_path, *({"_step": at, **row} for at, row in enumerate(rows)))
    trace = open_log(path)
    assert column(trace, "reward") == [0.1, 0.2]
    assert trace.run["notes"] == ["Rows that belong to no step are left out: 2."]
    assert (trace.warnings, trace.run["unrecognised"]) == ([], [])


def test_a_reward_without_a_step_is_still_told_as_unusable(tmp_path):
    row = {"_step": 0, "train/global_step": 1, "train/reward": 0.1}
    trace = open_log(jsonl(tmp_path, row, {"_step": 1, "eval/reward": 0.4, PROFILED: 0.5}))
    assert "line 2: no `train/global_step`" in trace.warnings[0]


@pytest.mark.parametrize("empty", [None, ""], ids=["json", "csv"])
def test_the_validation_of_verl_before_the_first_step_is_kept(tmp_path, empty):
    names = ("_step", "training/global_step", "critic/score/mean", "val-core/a/reward/mean@1")
    rows = [(0, empty, empty, 0.3), (1, 1, 0.1, empty), (2, 2, 0.2, 0.4)]
    trace = open_log(jsonl(tmp_path, *(dict(zip(names, row, strict=True)) for row in rows)))
    assert column(trace, "step") == [0, 1, 2]
    assert trace.steps["heldout_reward"][0] == 0.3
    assert (trace.warnings, trace.run["notes"]) == ([], [])


def test_an_evaluation_of_openrlhf_joins_the_step_that_it_names(tmp_path):
    first = {"_step": 0, "eval/global_step": 0, "eval/reward": 0.1}
    train = [{"_step": s, "train/global_step": s, "train/reward": 0.5} for s in (1, 2)]
    last = {"_step": 3, "eval/global_step": 2, "eval/reward": 0.3}
    trace = open_log(jsonl(tmp_path, first, *train, last))
    assert column(trace, "step") == [0, 1, 2]
    assert trace.steps["heldout_reward"][2] == 0.3
    assert trace.warnings == []
