"""Other people's logs as traces: right values and honest gaps."""

import json
import math

import numpy as np
import pytest

from flatline.errors import NotRecorded
from flatline.trace import Recorder
from flatline.trace.importers import open_log
from flatline.trace.settings import SETTINGS
from tests.log_files import jsonl, written

TRL_ROW = {"loss": 0.1, "grad_norm": 0.5, "reward": 0.25, "reward_std": 0.3, "kl": 0.01, "epoch": 1}


# --- TRL ---


def trainer_state(*rows, **more):
    return json.dumps({"log_history": list(rows), "max_steps": 9, "train_batch_size": 4, **more})


def test_a_trainer_state_keeps_its_values_and_only_what_it_has(tmp_path):
    rows = [{**TRL_ROW, "step": step, "reward": step / 8} for step in (1, 2, 3)]
    trace = open_log(written(tmp_path, "trainer_state.json", trainer_state(*rows)))
    assert trace.run["source"] == "import:trl"
    assert trace.steps["reward"].tolist() == [1 / 8, 2 / 8, 3 / 8]
    assert trace.metric("reward_std").tolist() == [0.3, 0.3, 0.3]
    assert trace.settings["max_steps"] == 9
    assert trace.settings["per_device_batch_size"] == 4
    assert trace.settings["beta"] is None
    assert set(trace.settings) == set(SETTINGS)
    for table, column in ((trace.steps, "reward_std_within"), (trace.rollouts, "reward")):
        with pytest.raises(NotRecorded):
            table[column]


def test_rows_that_stand_for_several_steps_are_told(tmp_path):
    state = trainer_state({**TRL_ROW, "step": 5}, logging_steps=5)
    trace = open_log(written(tmp_path, "trainer_state.json", state))
    assert trace.run["notes"] == ["Every row is the mean of 5 steps (logging_steps)."]


def test_an_output_folder_gives_its_latest_checkpoint(tmp_path):
    for step in (9, 10):
        state = trainer_state({"step": step, "reward": step})
        written(tmp_path, f"out/checkpoint-{step}/trainer_state.json", state)
    assert open_log(tmp_path / "out").steps["reward"].tolist() == [10]
    assert open_log(tmp_path / "out" / "checkpoint-9").steps["reward"].tolist() == [9]


# --- JSON, JSONL, CSV ---


@pytest.mark.parametrize("key", ["steps", "history", "logs", "metrics", "something_else"])
def test_rows_are_found_under_a_key(tmp_path, key):
    path = written(tmp_path, "log.json", json.dumps({"name": "x", key: [{"step": 3, "reward": 1}]}))
    assert open_log(path).steps["step"].tolist() == [3]


def test_a_json_name_with_a_row_on_each_line_is_read_as_jsonl(tmp_path):
    path = jsonl(tmp_path, {"step": 1, "reward": 1}, {"step": 2, "reward": 2}, name="log.json")
    assert open_log(path).steps["reward"].tolist() == [1, 2]


def test_a_row_may_keep_its_metrics_in_an_object_as_verls_does(tmp_path):
    validated = {"val-core/gsm8k/reward/mean@1": 0.2}
    trained = {"critic/score/mean": 0.5, "actor/ppo_kl": 0.1, "training/global_step": 1}
    trace = open_log(jsonl(tmp_path, {"step": 0, "data": validated}, {"step": 1, "data": trained}))
    assert trace.steps["step"].tolist() == [0, 1]
    assert trace.steps["heldout_reward"][0] == 0.2
    assert trace.steps["reward"][1] == 0.5
    assert "kl" not in trace.steps
    assert trace.metric("actor/ppo_kl")[1] == 0.1


def test_nan_and_infinity_and_numbers_as_text_are_numbers(tmp_path):
    path = jsonl(
        tmp_path,
        '{"step": "1", "loss": NaN, "grad_norm": Infinity, "reward": "0.5"}',
        '{"step": 2.0, "loss": "NaN", "grad_norm": 1, "reward": " 1e-3 "}',
    )
    trace = open_log(path)
    assert trace.steps["reward"].tolist() == [0.5, 0.001]
    assert np.isnan(trace.steps["loss"]).all()
    assert trace.steps["grad_norm"].tolist() == [math.inf, 1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv", b"\xef\xbb\xbfstep,reward\r\n1,0.5\r\n2,0.25\r\n"),
        ("log.jsonl", b'\xef\xbb\xbf{"step":1,"reward":0.5}\r\n{"step":2,"reward":0.25}\r\n'),
    ],
)
def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path, name, content):
    assert open_log(written(tmp_path, name, content)).steps["reward"].tolist() == [0.5, 0.25]


def test_names_that_no_alias_knows_are_kept_and_listed(tmp_path):
    trace = open_log(jsonl(tmp_path, {"step": 1, "reward": 1, "my_score": 7, "note": "x"}))
    assert trace.run["unrecognised"] == ["my_score"]
    assert trace.metric("my_score").tolist() == [7]
    assert trace.run["aliases"] == {"reward": "reward"}


def test_a_share_above_one_is_left_out_and_told(tmp_path):
    """It is a percentage or a count: "300 % of the completions were cut off" would be nonsense."""
    rows = [{"step": s, "reward": 1, "completions/clipped_ratio": 37.5} for s in (1, 2)]
    trace = open_log(jsonl(tmp_path, *rows))
    assert "truncated_share" not in trace.steps
    assert "'completions/clipped_ratio' is 37.5 at step 1" in trace.warnings[0]


def test_a_share_that_is_no_number_or_rounded_is_kept(tmp_path):
    rows = [{"step": s + 1, "frac_reward_zero_std": v} for s, v in enumerate((1 + 1e-7, math.nan))]
    assert "zero_std_share" in open_log(jsonl(tmp_path, *rows)).steps


def test_a_share_that_the_settings_say_is_over_the_batch_fills_no_column(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "flatline.trace.importers.settings_of",
        lambda config: dict.fromkeys(SETTINGS) | {"scale_rewards": "batch"},
    )
    trace = open_log(jsonl(tmp_path, {"step": 1, "reward": 1, "frac_reward_zero_std": 0.0}))
    assert "zero_std_share" not in trace.steps
    assert trace.run["unrecognised"] == []


@pytest.mark.parametrize(("shares", "told"), [((0.0, 1.0), True), ((0.0, 0.25), False)])
def test_that_a_share_may_be_of_whole_batches_is_told_where_it_may_be(tmp_path, shares, told):
    rows = [{"step": n, "reward": 1, "frac_reward_zero_std": s} for n, s in enumerate(shares, 1)]
    notes = open_log(jsonl(tmp_path, *rows)).run["notes"]
    assert any("whole batch" in note for note in notes) is told


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_csv_file_may_use_other_marks_and_leave_cells_empty(tmp_path, mark):
    lines = ["step,reward,phase_name,kl", "1,0.5,warm up,", "2,0.25,,0.1", "3,1,2,3,4"]
    path = written(tmp_path, "log.csv", "\n".join(lines).replace(",", mark))
    trace = open_log(path)
    assert trace.steps["reward"].tolist() == [0.5, 0.25]
    assert math.isnan(trace.steps["kl"][0])
    assert "line 4: 5 cells under 4 names" in trace.warnings[0]


def test_of_two_columns_with_one_name_the_last_is_read_and_that_is_told(tmp_path):
    trace = open_log(written(tmp_path, "log.csv", "step,reward,reward\n1,0.1,0.9\n"))
    assert trace.steps["reward"].tolist() == [0.9]
    assert trace.run["notes"] == ["Column 'reward' is there 2 times: the last one is read."]


@pytest.mark.parametrize(
    ("names", "values", "expected"),
    [
        (
            "Reward (0-1),Entropy [dB],Truncated (%),Learning rate (1e-6),train_kl",
            (0.5, 2, 25, 100, 0.1),
            {"reward": 0.5, "truncated_share": 0.25, "learning_rate": 1e-4, "kl": 0.1},
        ),
        (
            "pay_pct,drift_mnat,doubt_bits,eta_nano,words_out,cut_permille",
            (40, 5, 1, 800, 420, 3),
            {"reward": 0.4, "kl": 0.005, "entropy": math.log(2), "learning_rate": 8e-7}
            | {"completion_length": 420, "truncated_share": 0.003},
        ),
    ],
)
def test_a_unit_at_a_name_is_read_and_one_of_another_quantity_is_not(
    tmp_path, names, values, expected
):
    row = ",".join(map(str, values))
    trace = open_log(written(tmp_path, "u.csv", f"Step,{names}\n1,{row}\n2,{row}\n"))
    found = {name: trace.steps[name][1] for name in trace.run["aliases"]}
    assert found == pytest.approx(expected)


def test_a_run_directory_is_opened_as_what_it_is_though_it_has_lost_its_facts(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.5)
    assert open_log(tmp_path).warnings == []
    (tmp_path / "run.json").unlink()
    trace = open_log(tmp_path)
    assert trace.steps["reward"].tolist() == [0.5]
    assert "run.json is missing" in trace.warnings[0]
