"""W&B's and TensorBoard's own files, and tables and charts saved from trackers."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from flatline.trace.importers import open_log
from tests.log_files import jsonl, refusal, written

FIXTURES = Path(__file__).parent / "fixtures"
WANDB = FIXTURES / "offline.wandb"  # wandb 0.31
EVENTS = FIXTURES / "events.out.tfevents.1794724552.host.0"  # torch.utils.tensorboard, 2.21


def test_a_wandb_file_is_read_with_its_configuration():
    trace = open_log(WANDB)
    assert trace.run["source"] == "import:wandb"
    assert trace.steps["step"].tolist() == list(range(1, 81))
    assert trace.steps["reward"].tolist() == [step / 100 for step in range(1, 81)]
    assert trace.steps["heldout_reward"][79] == 0.4
    assert math.isnan(trace.steps["loss"][2])
    assert trace.steps["grad_norm"][4] == math.inf
    assert trace.metric("nested/a")[19] == 1.5
    assert trace.settings["num_generations"] == 8
    assert trace.settings["per_device_batch_size"] == 4
    assert trace.warnings == []


def test_a_table_logged_to_wandb_is_no_metric_and_no_unusable_row(tmp_path):
    table = {"_step": 1, "_timestamp": 1.7e9, "completions": {"_type": "table-file", "nrows": 4}}
    rows = [{"_step": 0, "train/global_step": 1, "train/reward": 0.5, "_timestamp": 1.7e9}, table]
    trace = open_log(jsonl(tmp_path, *rows))
    assert trace.metric_names == ["_timestamp", "train/reward"]
    assert trace.run["unusable"] == 0


def test_a_wandb_folder_gives_its_only_run_and_one_with_two_is_refused(tmp_path):
    for name in ("run-1", "run-2"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
        shutil.copy(WANDB, tmp_path / "wandb" / name / f"{name}.wandb")
        (tmp_path / "wandb" / "latest-run").unlink(missing_ok=True)
        (tmp_path / "wandb" / "latest-run").symlink_to(name)
        if name == "run-1":
            assert len(open_log(tmp_path).steps) == len(open_log(tmp_path / "wandb").steps) == 80
    assert "holds 2 logs" in refusal(tmp_path)


def test_a_wandb_summary_is_refused_with_the_way_out(tmp_path):
    path = written(tmp_path, "wandb-summary.json", '{"train/reward": 0.5, "_step": 9}')
    assert "without a history" in refusal(path)


@pytest.mark.parametrize(
    ("source", "size", "rows"), [(WANDB, 20_000, (11, 79)), (EVENTS, 1500, (2, 9))]
)
def test_a_file_that_is_still_being_written_gives_what_it_has(tmp_path, source, size, rows):
    trace = open_log(written(tmp_path, source.name, source.read_bytes()[:size]))
    assert rows[0] <= len(trace.steps) <= rows[1]
    assert "ends in the middle" in trace.run["notes"][0]


def test_a_damaged_block_of_a_wandb_file_is_skipped_and_told(tmp_path):
    data = bytearray(WANDB.read_bytes())
    data[20000] ^= 0xFF
    trace = open_log(written(tmp_path, "run.wandb", bytes(data)))
    steps = trace.steps["step"].tolist()
    assert steps[0] == 1 and steps[-1] == 80 and len(steps) < 80
    assert "checksum" in trace.warnings[0]


def test_a_damaged_tensorboard_record_is_left_out_and_told(tmp_path):
    data = bytearray(EVENTS.read_bytes())
    data[data.index(b"train/kl") + 3] ^= 1
    trace = open_log(written(tmp_path, EVENTS.name, bytes(data)))
    assert np.isnan(trace.steps["kl"][:2]).tolist() == [True, False]
    assert "checksum" in trace.warnings[0]


@pytest.mark.parametrize("as_folder", [True, False])
def test_tensorboard_scalars_are_read_in_both_forms(tmp_path, as_folder):
    shutil.copy(EVENTS, tmp_path)
    trace = open_log(tmp_path if as_folder else tmp_path / EVENTS.name)
    assert trace.run["source"] == "import:tensorboard"
    assert trace.steps["step"].tolist() == list(range(1, 11))
    expected = np.arange(1, 11, dtype=np.float64) / 100
    assert trace.steps["reward"].tolist() == expected.astype(np.float32).tolist()
    assert trace.steps["loss"].tolist() == [0.25] * 10
    assert trace.steps["grad_norm"].tolist() == [1.5] * 10
    assert trace.steps["heldout_reward"][4] == 0.5
    assert trace.steps["time"][0] > 1.7e9
    assert trace.warnings == []


def test_a_resumed_tensorboard_run_is_read_over_its_files(tmp_path):
    for number in (1, 2):
        shutil.copy(EVENTS, tmp_path / f"events.out.tfevents.{number}.host.0")
    assert len(open_log(tmp_path).steps) == 10


# What was saved from a tracker.


@pytest.mark.parametrize("run", ["run-7", "qwen - lr 1e-6"])
def test_a_chart_saved_from_wandb_is_read_without_the_name_of_its_run(tmp_path, run):
    header = f'"Step","{run} - train/reward","{run} - train/reward__MIN"'
    trace = open_log(written(tmp_path, "chart.csv", f"{header}\n1,0.5,0.1\n2,0.25,0.1\n"))
    assert trace.run["aliases"] == {"reward": "train/reward"}
    assert trace.metric_names == ["train/reward"]


@pytest.mark.parametrize("table", [
    "Step,a - train/reward,b - train/reward\n1,2,3\n",
    "run_id,key,value,step\na,reward,1,1\nb,reward,1,1\n",
])  # fmt: skip
def test_a_table_of_two_runs_is_refused(tmp_path, table):
    assert "holds 2 runs: 'a', 'b'" in refusal(written(tmp_path, "chart.csv", table))


def test_a_table_with_a_metric_a_row_is_read_by_metric_and_step(tmp_path):
    rows = [f"a1,{name},{at * worth},{at}" for name, worth in (("reward", 0.1), ("kl", 1.0))
            for at in (1, 2, 3)]  # fmt: skip
    trace = open_log(written(tmp_path, "m.csv", "\n".join(["run_id,key,value,step", *rows])))
    assert trace.steps["reward"] == pytest.approx([0.1, 0.2, 0.3])
    assert trace.steps["kl"].tolist() == [1.0, 2.0, 3.0]
    assert not trace.run["notes"]


def test_what_mlflow_saves_for_nan_and_infinity_is_no_number(tmp_path):
    values = [("0.5", 0), ("0", 1), ("1.7976931348623157e308", 0), ("0.4", 0)]
    rows = [f"grad_norm,{value},{step},{nan}" for step, (value, nan) in enumerate(values, 1)]
    rows += [f"reward,0.5,{step},0" for step in range(1, 5)]
    path = written(tmp_path, "m.csv", "\n".join(["key,value,step,is_nan", *rows]))
    assert np.isfinite(open_log(path).steps["grad_norm"]).tolist() == [True, False, False, True]


@pytest.mark.parametrize("under", [{"run_id": "x", "metrics": ...}, ...])
def test_an_object_of_histories_is_read_in_either_shape(tmp_path, under):
    steps = range(1, 21)
    metrics = {
        "reward": [{"step": at, "value": at / 100, "timestamp": 0} for at in steps],
        "kl": [[at, 0.001 * at] for at in steps],
    }
    log = metrics if under is ... else {**under, "metrics": metrics}
    trace = open_log(written(tmp_path, "metrics.json", json.dumps(log)))
    assert trace.steps["step"].tolist() == list(steps)
    assert (trace.steps["reward"][-1], trace.steps["kl"][-1]) == (0.2, 0.02)
