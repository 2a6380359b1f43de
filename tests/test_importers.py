"""Other people's logs as traces: right values, honest gaps, and no traceback on any file."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.errors import NotRecorded, TraceError
from flatline.trace import Recorder
from flatline.trace.importers import open_log
from flatline.trace.importers.aliases import CAVEATS, COLUMNS, KEPT, STEP
from flatline.trace.importers.resolve import plain, resolve
from flatline.trace.importers.settings import NAMES
from flatline.trace.importers.several import logs_in
from flatline.trace.schema import STEPS
from flatline.trace.settings import SETTINGS

FIXTURES = Path(__file__).parent / "fixtures"
WANDB = FIXTURES / "offline.wandb"  # wandb 0.31
EVENTS = FIXTURES / "events.out.tfevents.1794724552.host.0"  # torch.utils.tensorboard, 2.21
GRPO_LOGS = Path(__file__).parents[2] / "shared" / "data" / "grpo_logs"

TRL_ROW = {"loss": 0.1, "grad_norm": 0.5, "reward": 0.25, "reward_std": 0.3, "kl": 0.01, "epoch": 1}


def written(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content, encoding="utf-8")
    return path


def jsonl(tmp_path, *rows, name="log.jsonl"):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return written(tmp_path, name, "\n".join(lines) + "\n")


def refusal(path):
    with pytest.raises(TraceError) as caught:
        open_log(path)
    return str(caught.value)


# --- the table of names ---


def test_every_column_of_the_table_is_a_column_of_the_trace():
    assert set(COLUMNS) <= set(STEPS.names) - {"step", "metrics"}


def test_no_name_is_promised_to_two_columns():
    names = [name for names in (*COLUMNS.values(), STEP) for name in names]
    assert len(names) == len(set(names))


def test_names_are_written_as_they_are_compared():
    for name in [*KEPT, *CAVEATS, *(n for names in COLUMNS.values() for n in names), *STEP]:
        assert plain(name) == name


def test_every_caveat_is_about_a_name_that_fills_a_column():
    assert set(CAVEATS) <= {name for names in COLUMNS.values() for name in names}


def test_settings_are_the_canonical_ones():
    assert set(NAMES) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("reward", "reward"),
        ("train/reward", "reward"),
        ("critic/score/mean", "reward"),
        ("reward/avg_raw_reward", "reward"),
        ("Mean Reward", "reward"),
        ("debug/reward_std", "reward_std_within"),
        ("train/debug/reward_std", "reward_std_within"),
        ("frac_reward_zero_std", "zero_std_share"),
        ("sampling/sampling_logp_difference/mean", "logprob_gap"),
        ("actor/pg_clipfrac", "clip_share"),
        ("actor/kl_loss", "kl"),
        ("optim/grad_norm", "grad_norm"),
        ("completions/clipped_ratio", "truncated_share"),
        ("eval/reward", "heldout_reward"),
        ("val-core/gsm8k/reward/mean@1", "heldout_reward"),
        ("timing_s/gen", "seconds_sampling"),
        ("run-3 - train/reward", "reward"),  # a chart that W&B exports
        ("Completions / mean_length", "completion_length"),  # a table of Unsloth's in a notebook
        ("Training Loss", "loss"),
        ("rollout/raw_reward", "reward"),
        ("ppo_actor/update/grad_norm", "grad_norm"),
        ("env/all/reward/total", "reward"),
        ("train_clip_fraction", "clip_share"),
    ],
)
def test_a_name_fills_its_column(name, column):
    assert resolve([name]).aliases == {column: name}


@pytest.mark.parametrize(
    "name",
    [
        "reward_std",
        "actor/ppo_kl",
        "mismatch_kl/mean",
        "critic/advantages/max",
        "training/rollout_probs_diff_mean",
        "token_mult_prob_error",
        "debug/ratio_off_max",
        "rewards/accuracy/mean",
        "rewards/accuracy",
        "eval_rewards/accuracy/mean",
        "train_loss",
        "seq_len/mean",
        "train_reward_std",
        "approx_kl",
        "kl_loss",
        "test_accuracy",
        "run-3 - train/reward__MAX",
        "max_staleness",
    ],
)
def test_what_only_resembles_a_column_is_known_and_fills_none(name):
    found = resolve([name])
    assert found.aliases == {}
    assert found.unrecognised == []


def test_the_better_of_two_names_is_taken_and_the_choice_is_told():
    found = resolve(["critic/rewards/mean", "critic/score/mean"])
    assert found.aliases == {"reward": "critic/score/mean"}
    assert found.notes == ["`reward` is 'critic/score/mean', not 'critic/rewards/mean'."]


def test_a_name_with_a_catch_is_taken_and_the_catch_is_told():
    found = resolve(["critic/rewards/mean"])
    assert found.aliases == {"reward": "critic/rewards/mean"}
    assert "use_kl_in_reward" in found.notes[0]


def test_two_held_out_sets_leave_the_column_empty():
    names = ["val-core/gsm8k/reward/mean@1", "val-core/math/reward/mean@1"]
    found = resolve(names)
    assert "heldout_reward" not in found.aliases
    assert "left empty" in found.notes[0]
    assert found.unrecognised == []


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
    with pytest.raises(NotRecorded):
        trace.steps["reward_std_within"]
    with pytest.raises(NotRecorded):
        trace.rollouts["reward"]


def test_evaluation_rows_join_the_training_row_of_their_step(tmp_path):
    rows = [{**TRL_ROW, "step": 1}, {**TRL_ROW, "step": 2}, {"eval_reward": 0.5, "step": 2}]
    trace = open_log(written(tmp_path, "trainer_state.json", trainer_state(*rows)))
    assert trace.steps["step"].tolist() == [1, 2]
    assert math.isnan(trace.steps["heldout_reward"][0])
    assert trace.steps["heldout_reward"][1] == 0.5
    assert trace.run["notes"] == []


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


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    path = written(tmp_path, "log.csv", b"\xef\xbb\xbfstep,reward\r\n1,0.5\r\n2,0.25\r\n")
    assert open_log(path).steps["reward"].tolist() == [0.5, 0.25]
    path = written(tmp_path, "log.jsonl", b'\xef\xbb\xbf{"step":1,"reward":0.5}\r\n')
    assert open_log(path).steps["reward"].tolist() == [0.5]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("log.csv", ["step,reward", "1,0.5", "2,0.25"]),
        ("log.tsv", ["step\treward", "1\t0.5", "2\t0.25"]),
        ("log", ["step,reward", "1,0.5", "2,0.25"]),
        ("log.jsonl", ['{"step":1,"reward":0.5}', '{"step":2,"reward":0.25}']),
        ("log.json", ["[", '{"step":1,"reward":0.5},', '{"step":2,"reward":0.25}', "]"]),
        ("log.txt", [f"step:{at} - loss:0.1 - kl:0.1 - reward:{0.5 / at}" for at in (1, 2)]),
    ],
)
def test_any_line_end_ends_a_line(tmp_path, name, rows, end):
    for text in (end.join(rows), end.join(rows) + end):
        path = written(tmp_path, name, text.encode())
        assert logs_in(str(path)) == [str(path)]
        trace = open_log(path)
        assert trace.steps["reward"].tolist() == [0.5, 0.25]
        assert trace.warnings == []


def test_a_table_whose_line_ends_are_mixed_is_read(tmp_path):
    path = written(tmp_path, "log.csv", b"step,reward\r1,0.5\n2,0.25\r\n")
    assert open_log(path).steps["reward"].tolist() == [0.5, 0.25]
    path = written(tmp_path, "log.jsonl", b'{"step":1,"reward":0.5}\r{"step":2,"reward":0.25}\n')
    assert open_log(path).steps["reward"].tolist() == [0.5, 0.25]


def test_a_progress_bar_that_is_drawn_over_itself_is_no_row_each_time(tmp_path):
    bars = "\r".join(f"{at}% | loss=0.{at}, reward=0.{at}, kl=0.{at}]" for at in range(9))
    rows = "".join(f"{bars}\nstep:{at} - loss:0.1 - kl:0.1 - reward:0.5\n" for at in (1, 2, 3))
    trace = open_log(written(tmp_path, "log.txt", rows))
    assert trace.steps["step"].tolist() == [1, 2, 3]


def test_a_header_that_no_table_can_have_is_no_traceback(tmp_path):
    path = written(tmp_path, "log.csv", "step,reward" + "d" * 200_000 + "\n1,2\n")
    assert logs_in(str(path)) == [str(path)]
    with pytest.raises(TraceError):
        open_log(path)


def test_rows_without_a_step_are_numbered_from_one(tmp_path):
    trace = open_log(jsonl(tmp_path, {"reward": 0.5}, {"reward": 0.25}))
    assert trace.steps["step"].tolist() == [1, 2]
    assert trace.run["notes"] == ["The log names no step: its rows are numbered from 1."]


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


def test_the_last_of_two_rows_for_a_step_wins(tmp_path):
    rows = [{"step": 1, "reward": 1}, {"step": 2, "reward": 2}, {"step": 2, "reward": 3}]
    trace = open_log(jsonl(tmp_path, *rows))
    assert trace.steps["reward"].tolist() == [1, 3]
    assert trace.run["notes"] == [
        "Step 2 occurs more than once: the last row wins, 1 row is overwritten."
    ]


def test_a_resumed_run_loses_the_branch_that_was_given_up(tmp_path):
    first = [{"step": step, "reward": 0.0} for step in range(1, 7)]
    second = [{"step": step, "reward": 1.0} for step in range(4, 6)]
    trace = open_log(jsonl(tmp_path, *first, *second))
    assert trace.steps["step"].tolist() == [1, 2, 3, 4, 5]
    assert trace.steps["reward"].tolist() == [0, 0, 0, 1, 1]
    assert trace.run["notes"] == [
        "The log goes back from step 6 to step 4, as a resumed run does. The later rows count, 3 "
        "earlier rows do not."
    ]


def numbered(steps, reward):
    return [{"step": step, "reward": reward} for step in steps]


def test_a_run_resumed_between_two_rows_is_a_resumed_run(tmp_path):
    first, second = numbered(range(5, 45, 5), 0.0), numbered(range(27, 50, 5), 1.0)
    trace = open_log(jsonl(tmp_path, *first, *second))
    assert trace.steps["step"].tolist() == [5, 10, 15, 20, 25, 27, 32, 37, 42, 47]
    assert "from step 40 to step 27" in " ".join(trace.run["notes"])


def test_a_run_resumed_several_times_is_told_in_one_sentence(tmp_path):
    parts = [numbered(range(1, 31), 0.0), numbered(range(20, 35), 1.0), numbered([30, 31], 2.0)]
    trace = open_log(jsonl(tmp_path, *(row for part in parts for row in part)))
    assert trace.steps["reward"].tolist() == [0.0] * 19 + [1.0] * 10 + [2.0] * 2
    [note] = trace.run["notes"]
    assert "goes back 2 times, first from step 30 to step 20" in note
    assert "16 earlier rows do not" in note


def test_a_log_that_begins_again_is_its_last_run(tmp_path):
    trace = open_log(jsonl(tmp_path, *numbered(range(1, 31), 0.0), *numbered(range(1, 5), 1.0)))
    assert trace.steps["reward"].tolist() == [1.0] * 4
    [note] = trace.run["notes"]
    assert "begins again: after step 30 comes step 1" in note
    assert "30 earlier rows are left out" in note


@pytest.mark.parametrize("step", [-1, 3])
def test_rows_in_no_order_or_in_the_opposite_one_are_no_resumed_run(tmp_path, step):
    steps = [7 * n % 31 for n in range(1, 31)] if step == 3 else list(range(30, 0, step))
    trace = open_log(jsonl(tmp_path, *numbered(steps, 0.5)))
    assert trace.steps["step"].tolist() == list(range(1, 31))
    assert trace.run["notes"] == []


def test_where_no_step_is_named_the_epoch_says_that_the_run_was_resumed(tmp_path):
    rows = [{"epoch": n / 10, "reward": 0.0} for n in range(1, 8)]
    again = [{"epoch": n / 10, "reward": 1.0} for n in range(5, 10)]
    trace = open_log(jsonl(tmp_path, *rows, *again))
    assert trace.steps["reward"].tolist() == [0.0] * 4 + [1.0] * 5
    assert "from step 7 to step 5" in " ".join(trace.run["notes"])


def test_an_epoch_of_few_digits_does_not_go_back(tmp_path):
    rows = [{"epoch": round(n / 300, 2), "reward": n / 10} for n in range(1, 31)]
    assert len(open_log(jsonl(tmp_path, *rows)).steps) == 30


def test_a_late_evaluation_is_no_resumed_run(tmp_path):
    rows = [{"step": step, "reward": 0.0, "epoch": 0.1 * step} for step in range(1, 5)]
    trace = open_log(jsonl(tmp_path, *rows, {"step": 2, "eval_reward": 1.0, "epoch": 0.25}))
    assert trace.steps["step"].tolist() == [1, 2, 3, 4]
    assert trace.steps["heldout_reward"][1] == 1.0
    assert trace.run["notes"] == []


def test_unusable_rows_are_counted_and_the_first_three_are_named(tmp_path):
    bad = ["{broken", "[1]", '{"step": -1, "reward": 1}', '{"step": 1.5, "reward": 1}']
    trace = open_log(jsonl(tmp_path, {"step": 1, "reward": 1}, *bad, {"reward": 2}))
    assert trace.steps["reward"].tolist() == [1]
    assert trace.run["unusable"] == 5
    told = "\n".join(trace.warnings)
    assert "line 2: not JSON" in told
    assert "b'{broken'" in told
    assert "line 3: not an object: [1]" in told
    assert "line 4: `step` is no step: -1" in told
    assert "2 more" in told


def test_a_last_line_that_is_still_being_written_is_no_damage(tmp_path):
    rows = b'{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.5}\n{"step": 3, "rew'
    trace = open_log(written(tmp_path, "log.jsonl", rows))
    assert len(trace.steps) == 2
    assert trace.warnings == []
    assert any("in the middle of a row, on line 3" in told for told in trace.caveats)


def test_one_line_with_bytes_that_are_no_text_costs_only_that_line(tmp_path):
    content = b'{"step": 1, "reward": 1}\n{"step": 2, "re\xffward": 1}\n{"step": 3, "reward": 1}\n'
    trace = open_log(written(tmp_path, "log.jsonl", content))
    assert trace.steps["step"].tolist() == [1, 3]
    assert "line 2: not JSON (not UTF-8 text at byte 15" in trace.warnings[0]


def test_a_reward_that_is_no_number_is_told(tmp_path):
    trace = open_log(jsonl(tmp_path, {"step": 1, "reward": "n/a"}, {"step": 2, "reward": 1}))
    assert trace.steps["reward"].tolist() == [1]
    assert "line 1: `reward` is not a number: 'n/a'" in trace.warnings[0]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_csv_file_may_use_other_marks_and_leave_cells_empty(tmp_path, mark):
    lines = ["step,reward,phase_name,kl", "1,0.5,warm up,", "2,0.25,,0.1", "3,1,2,3,4"]
    path = written(tmp_path, "log.csv", "\n".join(lines).replace(",", mark))
    trace = open_log(path)
    assert trace.steps["reward"].tolist() == [0.5, 0.25]
    assert math.isnan(trace.steps["kl"][0])
    assert "line 4: 5 cells under 4 names" in trace.warnings[0]


RUNS = {
    "w&b": '"Name","State","Notes","User","Created","Runtime","Sweep","beta","train/reward"\n'
    '"grpo-a","finished","","me","2025-09-01T10:00:00.000Z","3600","","0.04","0.41"\n'
    '"grpo-b","crashed","","me","2025-09-02T10:00:00.000Z","120","","0.0","0.38"\n',
    "w&b, one name": "Name,State,Created,Runtime,reward,global_step\n"
    "grpo,finished,2025-09-01,3600,0.4,100\ngrpo,failed,2025-09-02,60,0.3,200\n",
    "w&b, few columns": "Name,State,reward\na,finished,0.4\nb,running,0.3\n",
    "w&b, no state": "Name,Created,Runtime,reward\na,2025-09-01,3600,0.4\n",
    "w&b's client": ",summary,config,name\n0,{'reward': 0.4},{'lr': 1},a\n1,{'reward': 0.3},{},b\n",
    "mlflow": "run_id,experiment_id,status,start_time,metrics.reward\n"
    "ab12,0,FINISHED,2025-09-01,0.4\ncd34,0,FAILED,2025-09-02,0.3\n",
    "mlflow's page": "Start Time,Duration,Run ID,Name,User,Status,reward\n"
    "2025-09-01,1h,ab12,a,me,FINISHED,0.4\n2025-09-02,1h,cd34,b,me,RUNNING,0.3\n",
}


@pytest.mark.parametrize("content", RUNS.values(), ids=RUNS)
def test_a_table_of_runs_is_no_log_and_what_to_export_is_said(tmp_path, content):
    said = refusal(written(tmp_path, "runs.csv", content))
    assert "a table of runs" in said
    assert "line 2 is" in said
    assert "scan_history" in said and "mlflow:" in said


@pytest.mark.parametrize(
    "rows",
    [
        "run,state,created,step,reward\na,running,10:00,1,0.5\na,running,10:01,2,0.25\n",
        "name,runtime,step,reward\na,3,1,0.5\na,6,2,0.25\n",
        "name,state,step,reward\nfirst,warming up,1,0.5\nsecond,training,2,0.25\n",
        "step,reward,status,created\n1,0.5,running,10:00\n2,0.25,finished,10:01\n",
    ],
)
def test_a_log_that_writes_its_run_into_every_row_is_still_one_of_steps(tmp_path, rows):
    assert list(open_log(written(tmp_path, "log.csv", rows)).steps["reward"]) == [0.5, 0.25]


def test_a_csv_file_without_a_header_is_refused(tmp_path):
    assert "Add a first line" in refusal(written(tmp_path, "log.csv", "1,0.5\n2,0.25\n"))


def test_a_chart_saved_from_wandb_is_read_without_the_name_of_its_run(tmp_path):
    header = '"Step","run-7 - train/reward","run-7 - train/reward__MIN"'
    trace = open_log(written(tmp_path, "chart.csv", f"{header}\n1,0.5,0.1\n2,0.25,0.1\n"))
    assert trace.run["aliases"] == {"reward": "train/reward"}
    assert trace.metric_names == ["train/reward"]


def test_a_chart_of_two_runs_is_refused(tmp_path):
    path = written(tmp_path, "chart.csv", "Step,a - train/reward,b - train/reward\n1,2,3\n")
    assert "holds 2 runs: 'a', 'b'" in refusal(path)


def test_the_name_of_a_run_in_a_saved_chart_may_hold_dashes(tmp_path):
    header = "Step,qwen - lr 1e-6 - train/reward,qwen - lr 1e-6 - train/reward__MAX"
    trace = open_log(written(tmp_path, "chart.csv", f"{header}\n1,0.5,0.6\n"))
    assert trace.run["aliases"] == {"reward": "train/reward"}


def test_of_two_columns_with_one_name_the_last_is_read_and_that_is_told(tmp_path):
    trace = open_log(written(tmp_path, "log.csv", "step,reward,reward\n1,0.1,0.9\n"))
    assert trace.steps["reward"].tolist() == [0.9]
    assert trace.run["notes"] == ["Column 'reward' is there 2 times: the last one is read."]


# --- W&B and TensorBoard ---


PROFILED = "profiling/Time taken: GRPOTrainer.compute_loss"


@pytest.mark.parametrize(
    "content",
    [
        f"_step,train/global_step,train/reward,{PROFILED}\n0,,,0.5\n1,1,0.1,\n2,,,0.6\n3,2,0.2,\n",
        "".join(
            json.dumps(row) + "\n"
            for row in (
                {"_step": 0, PROFILED: 0.5, "_timestamp": 1.0},
                {"_step": 1, "train/global_step": 1, "train/reward": 0.1},
                {"_step": 2, PROFILED: 0.6, "_timestamp": 2.0},
                {"_step": 3, "train/global_step": 2, "train/reward": 0.2},
            )
        ),
    ],
    ids=["csv", "jsonl"],
)
def test_times_that_trl_sends_between_steps_are_no_unreadable_rows(tmp_path, content):
    name = "log.csv" if content.startswith("_step,") else "log.jsonl"
    trace = open_log(written(tmp_path, name, content))
    assert trace.steps["reward"].tolist() == [0.1, 0.2]
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
    assert trace.steps["step"].tolist() == [0, 1, 2]
    assert trace.steps["heldout_reward"][0] == 0.3
    assert (trace.warnings, trace.run["notes"]) == ([], [])


def test_an_evaluation_of_openrlhf_joins_the_step_that_it_names(tmp_path):
    first = {"_step": 0, "eval/global_step": 0, "eval/reward": 0.1}
    train = [{"_step": s, "train/global_step": s, "train/reward": 0.5} for s in (1, 2)]
    last = {"_step": 3, "eval/global_step": 2, "eval/reward": 0.3}
    trace = open_log(jsonl(tmp_path, first, *train, last))
    assert trace.steps["step"].tolist() == [0, 1, 2]
    assert trace.steps["heldout_reward"][2] == 0.3
    assert trace.warnings == []


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


def test_a_wandb_folder_gives_its_only_run(tmp_path):
    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    shutil.copy(WANDB, tmp_path / "wandb" / "offline-run-1" / "run-1.wandb")
    (tmp_path / "wandb" / "latest-run").symlink_to("offline-run-1")
    assert len(open_log(tmp_path).steps) == 80
    assert len(open_log(tmp_path / "wandb").steps) == 80


def test_a_wandb_folder_with_two_runs_is_refused(tmp_path):
    for name in ("run-1", "run-2"):
        (tmp_path / name).mkdir()
        shutil.copy(WANDB, tmp_path / name / f"{name}.wandb")
    assert "holds 2 logs" in refusal(tmp_path)


def test_a_wandb_file_that_is_still_being_written_gives_what_it_has(tmp_path):
    path = written(tmp_path, "run.wandb", WANDB.read_bytes()[:20000])
    trace = open_log(path)
    assert 10 < len(trace.steps) < 80
    assert "ends in the middle of a record" in trace.run["notes"][0]


def test_a_damaged_block_of_a_wandb_file_is_skipped_and_told(tmp_path):
    data = bytearray(WANDB.read_bytes())
    data[20000] ^= 0xFF
    trace = open_log(written(tmp_path, "run.wandb", bytes(data)))
    steps = trace.steps["step"].tolist()
    assert steps[0] == 1
    assert steps[-1] == 80
    assert len(steps) < 80
    assert "checksum" in trace.warnings[0]


def test_a_wandb_summary_is_refused_with_the_way_out(tmp_path):
    path = written(tmp_path, "wandb-summary.json", '{"train/reward": 0.5, "_step": 9}')
    assert "without a history" in refusal(path)


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
    shutil.copy(EVENTS, tmp_path / "events.out.tfevents.1.host.0")
    shutil.copy(EVENTS, tmp_path / "events.out.tfevents.2.host.0")
    trace = open_log(tmp_path)
    assert len(trace.steps) == 10


def test_a_damaged_tensorboard_record_is_left_out_and_told(tmp_path):
    data = bytearray(EVENTS.read_bytes())
    at = data.index(b"train/kl") + 3
    data[at] ^= 1
    trace = open_log(written(tmp_path, EVENTS.name, bytes(data)))
    assert math.isnan(trace.steps["kl"][0])
    assert not math.isnan(trace.steps["kl"][1])
    assert "checksum" in trace.warnings[0]


def test_a_tensorboard_file_that_is_cut_off_gives_what_it_has(tmp_path):
    trace = open_log(written(tmp_path, EVENTS.name, EVENTS.read_bytes()[:1500]))
    assert 1 < len(trace.steps) < 10
    assert "ends in the middle" in trace.run["notes"][0]


# --- rollouts ---


def verl_rows(step):
    scores = {"2+2": (1.0, 0.0), "3+3": (0.0, 0.0)}
    return [
        {"input": prompt, "output": "…", "gts": "4", "score": score, "step": step, "acc": score > 0}
        for prompt, both in scores.items()
        for score in both
    ]


def test_a_folder_of_verl_dumps_gives_rollouts_groups_and_steps(tmp_path):
    for step in (2, 10):
        jsonl(tmp_path, *verl_rows(step), name=f"dump/{step}.jsonl")
    trace = open_log(tmp_path / "dump")
    assert trace.run["source"] == "import:verl"
    assert trace.groups().n == 4
    assert trace.groups().size.tolist() == [2, 2, 2, 2]
    assert trace.parts()["acc"][:4].tolist() == [1, 0, 0, 0]
    assert trace.rollouts["gold"][0] == "4"
    assert trace.steps["step"].tolist() == [2, 10]
    assert trace.steps["reward"].tolist() == [0.25, 0.25]
    assert trace.steps["zero_std_share"].tolist() == [0.5, 0.5]
    assert trace.steps["reward_std_within"][0] == pytest.approx(math.sqrt(0.5) / 2)
    with pytest.raises(NotRecorded):
        trace.rollouts["completion_tokens"]


def test_a_verl_dump_takes_its_step_from_the_file_where_rows_have_none(tmp_path):
    rows = [{key: value for key, value in row.items() if key != "step"} for row in verl_rows(1)]
    jsonl(tmp_path, *rows, name="dump/7.jsonl")
    assert open_log(tmp_path / "dump").steps["step"].tolist() == [7]


def test_verifiers_results_give_rollouts_with_turns_and_calls(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "search"}]}
    completion = [call, {"role": "tool", "content": "x"}, {"role": "assistant", "content": "4"}]
    row = {
        "example_id": 3,
        "prompt": [{"role": "user", "content": "2+2?"}],
        "completion": completion,
        "answer": "4",
        "reward": 1.0,
        "metrics": {"exact_match": 1.0, "num_turns": 2},
        "exact_match": 1.0,
        "is_truncated": False,
        "token_usage": {"input_tokens": 90.0, "output_tokens": 12.0},
    }
    trace = open_log(jsonl(tmp_path, row, {**row, "reward": 0.0, "is_truncated": True}))
    assert trace.run["source"] == "import:verifiers"
    assert trace.rollouts["prompt_id"].tolist() == ["3", "3"]
    assert trace.rollouts["prompt"][0] == "user: 2+2?"
    assert trace.rollouts["tool_calls"].tolist() == [1, 1]
    assert trace.rollouts["turns"].tolist() == [2, 2]
    assert trace.rollouts["finish"].tolist() == [None, "length"]
    assert trace.rollouts["model_tokens"].tolist() == [12, 12]
    assert sorted(trace.parts()) == ["exact_match", "num_turns"]
    assert trace.run["notes"][0] == "2 rollouts name no step: they are all given step 1."


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


def test_older_verifiers_results_have_their_metrics_beside_the_rest(tmp_path):
    row = {"prompt": "2+2?", "completion": "4", "answer": "4", "reward": 1.0, "task": "t"}
    trace = open_log(jsonl(tmp_path, {**row, "format_reward": 0.5, "generation_ms": 12.0}))
    assert {name: values.tolist() for name, values in trace.parts().items()} == {
        "format_reward": [0.5]
    }


def test_a_rollout_without_a_reward_is_told(tmp_path):
    rows = verl_rows(1)
    rows[1]["score"] = None
    trace = open_log(jsonl(tmp_path, *rows))
    assert len(trace.rollouts) == 3
    assert "line 2: `score` is not a number: None" in trace.warnings[0]


# --- what a path is, and what is refused ---


def test_a_run_directory_is_opened_as_what_it_is(tmp_path):
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_step(step=1, reward=0.5)
    assert open_log(tmp_path / "run").steps["reward"].tolist() == [0.5]


def test_a_run_directory_that_has_lost_its_facts_is_still_one(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.5)
    (tmp_path / "run.json").unlink()
    trace = open_log(tmp_path)
    assert trace.steps["reward"].tolist() == [0.5]
    assert "run.json is missing" in trace.warnings[0]


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "log.jsonl")
    assert "is a pipe or a device" in refusal(tmp_path / "log.jsonl")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("log.jsonl", b"", "is empty"),
        ("log.json", b"  \n", "is empty"),
        ("log.csv", b"step,reward\n", "holds no rows"),
        ("log.jsonl", b"\xef\xbb\xbf", "holds no rows"),
        ("log.json", b"[]", "holds no rows"),
        ("log.json", b"{}", "no list of rows"),
        ("log.json", b"3", "no list of rows"),
        ("log.json", b'{"log_history": [', "line 1 is not JSON"),
        ("log.jsonl", b"nonsense\n", "line 1: not JSON"),
        ("log.jsonl", b'{"step": 1, "name": "x"}\n', "no row with a step and a number"),
        ("log.json", b"[" * 100_000, "not JSON that can be read"),
        ("log.jsonl", b"\x1f\x8b\x08\x00binary", "zero byte"),
        ("log.bin", b"\x89PNG\r\n\x1a\n\xff\xfe", "not UTF-8"),
        ("log.txt", b"hello\n", "which no log does"),
        ("run.wandb", b"junk", "no W&B run file"),
        ("run.wandb", b":W&B\xe1\xbe\x00" + b"junk" * 9, "holds no rows"),
        ("events.out.tfevents.1", b"junk" * 9, "damaged length"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path, name, content, expected):
    message = refusal(written(tmp_path, name, content))
    assert expected in message
    assert str(tmp_path / name) in message


def test_a_line_that_is_far_too_long_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("flatline.trace.importers.text.MAX_LINE", 1000)
    path = jsonl(tmp_path, {"step": 1, "reward": 1}, {"step": 2, "text": "x" * 2000})
    assert "line 2 is longer than" in refusal(path)


def test_a_path_that_is_not_there_and_a_folder_without_a_log_are_refused(tmp_path):
    assert "no file or folder" in refusal(tmp_path / "missing.jsonl")
    written(tmp_path, "readme.txt", "hello")
    assert "seen: readme.txt" in refusal(tmp_path)


def test_text_of_a_log_reaches_no_terminal_unescaped(tmp_path):
    path = jsonl(tmp_path, '{"step": 1, "reward": "\\u001b[2J"}', '{"step": 2, "reward": 1}')
    assert "\x1b" not in "".join(open_log(path).warnings)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.binary(max_size=300),
    start=st.sampled_from([b"", b":W&B\xe1\xbe\x00", b'{"step": 1, "reward": ', b"step,reward\n"]),
    name=st.sampled_from(["a.json", "a.jsonl", "a.csv", "a.wandb", "tfevents.1", "a"]),
)
def test_no_bytes_make_it_fail_with_anything_but_a_trace_error(tmp_path, data, start, name):
    path = written(tmp_path, name, start + data)
    try:
        open_log(path)
    except TraceError as error:
        assert str(path) in str(error)


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    source=st.sampled_from([WANDB, EVENTS]),
    at=st.floats(0, 1, exclude_max=True),
    patch=st.binary(min_size=1, max_size=12),
)
def test_damage_anywhere_in_a_binary_file_never_changes_a_value(tmp_path, source, at, patch):
    data = bytearray(source.read_bytes())
    start = int(at * len(data))
    data[start : start + len(patch)] = patch
    path = written(tmp_path, source.name, bytes(data))
    whole = dict(
        zip(*(open_log(source).steps[c].tolist() for c in ("step", "reward")), strict=True)
    )
    try:
        trace = open_log(path)
        found = dict(zip(trace.steps["step"], trace.steps["reward"], strict=True))
    except TraceError:
        return
    assert all(whole[step] == value or math.isnan(value) for step, value in found.items())


ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["step", "reward", "kl", "data", "input", "output", "score", "prompt"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=3,
        ),
    ),
    max_size=6,
)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS)
def test_no_rows_make_it_fail_with_anything_but_a_trace_error(tmp_path, rows):
    path = written(tmp_path, "log.json", json.dumps(rows))
    try:
        trace = open_log(path)
    except TraceError:
        return
    assert len(trace.steps) or len(trace.rollouts)
    steps = trace.steps["step"].tolist() if len(trace.steps) else []
    assert steps == sorted(set(steps))


# --- real logs ---


@pytest.mark.skipif(not GRPO_LOGS.is_dir(), reason="the logs are not part of the project")
def test_rewards_of_real_logs_come_through_unchanged():
    files = sorted(GRPO_LOGS.iterdir())
    assert len(files) == 8
    for path in files:
        text = path.read_text()
        rows = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else None
        data = rows or json.loads(text)
        rows = data["log_history"] if isinstance(data, dict) else data
        raw = [row["reward"] for row in rows if "reward" in row]
        assert open_log(path).steps["reward"].tolist() == raw, path.name


def test_a_table_with_a_metric_a_row_is_read_by_metric_and_step(tmp_path):
    rows = [f"a1,{name},{at * worth},{at}" for name, worth in (("reward", 0.1), ("kl", 1.0))
            for at in (1, 2, 3)]  # fmt: skip
    (tmp_path / "m.csv").write_text("\n".join(["run_id,key,value,step", *rows]))
    trace = open_log(tmp_path / "m.csv")
    assert trace.steps["reward"] == pytest.approx([0.1, 0.2, 0.3])
    assert trace.steps["kl"].tolist() == [1.0, 2.0, 3.0]
    assert not trace.run["notes"]


def test_a_table_of_several_runs_with_a_metric_a_row_is_refused(tmp_path):
    (tmp_path / "m.csv").write_text("run_id,key,value,step\na,reward,1,1\nb,reward,1,1\n")
    with pytest.raises(TraceError, match="holds 2 runs"):
        open_log(tmp_path / "m.csv")


def test_a_unit_behind_a_name_is_read_and_one_of_another_quantity_is_not(tmp_path):
    names = "Step,Reward (0-1),Entropy [dB],Truncated (%),Learning rate (1e-6),train_kl"
    (tmp_path / "u.csv").write_text(f"{names}\n1,0.5,2,25,100,0.1\n2,0.5,2,50,100,0.1\n")
    trace = open_log(tmp_path / "u.csv")
    assert trace.steps["reward"].tolist() == [0.5, 0.5]
    assert trace.steps["truncated_share"].tolist() == [0.25, 0.5]
    assert trace.steps["learning_rate"] == pytest.approx([1e-4, 1e-4])
    assert trace.steps["kl"].tolist() == [0.1, 0.1]
    assert "entropy" not in trace.steps


def test_a_unit_after_a_name_is_read_and_a_name_says_by_its_words_what_it_is(tmp_path):
    names = "Step,pay_pct,drift_mnat,doubt_bits,eta_nano,words_out,cut_permille"
    (tmp_path / "u.csv").write_text(f"{names}\n1,40,5,1,800,420,3\n2,50,10,1,800,440,4\n")
    trace = open_log(tmp_path / "u.csv")
    assert trace.steps["reward"] == pytest.approx([0.4, 0.5])
    assert trace.steps["kl"] == pytest.approx([0.005, 0.01])
    assert trace.steps["entropy"] == pytest.approx([0.693, 0.693], abs=1e-3)
    assert trace.steps["learning_rate"] == pytest.approx([8e-7, 8e-7])
    assert trace.steps["completion_length"].tolist() == [420, 440]
    assert trace.steps["truncated_share"] == pytest.approx([0.003, 0.004])


@pytest.mark.parametrize(
    "name",
    [
        *("kl_old", "policy_ratio_pct", "tool_success_pct", "reward_std_pct", "tokens_per_s"),
        *("prompt_tokens", "grad_clip_frac", "steps_per_s", "eval_pay_pct", "h"),
    ],
)
def test_a_name_with_another_word_is_not_taken_for_a_column_by_its_words(name):
    assert name not in resolve([name]).aliases.values()
