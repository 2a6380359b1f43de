"""Traces on disk: damage, versions, locks, resumed runs and several processes."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatline.errors import TraceError
from flatline.trace import Recorder, Trace
from flatline.trace.files import StreamFile
from flatline.trace.schema import TABLES
from flatline.trace.writer import Writer
from tests.traces import healthy_rows, rollout_rows, run_facts

STEPS, PER_STEP = 6, 8
CHILD = Path(__file__).parent / "trace_child.py"


def write_steps(folder, steps=range(1, STEPS + 1), *, close=True, clean=True, rank=0, shift=0.0):
    """One batch of rollouts and tokens and one row of steps for each step."""
    writer = Writer(folder, rank=rank, run=run_facts())
    for step in steps:
        rollouts = rollout_rows([[0.5 + shift, 1.0 + shift]] * (PER_STEP // 2), step=step)
        rows = [
            {**row, "rank": rank, "rollout": row["rollout"] + PER_STEP * rank} for row in rollouts
        ]
        writer.write("rollouts", rows)
        tokens = [{"step": step, "rollout": row["rollout"], "ids": np.arange(5)} for row in rows]
        writer.write("tokens", tokens)
        if rank == 0:
            writer.write("steps", [{"step": step, "reward": float(step) + shift}])
        writer.end_step()
    if close:
        writer.close(clean=clean)
    return writer


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def spans(path):
    lines = path.with_suffix(".crc").read_text().splitlines()
    return [tuple(map(int, line.split()[:2])) for line in lines]


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_written_is_read_whether_or_not_the_run_ended(tmp_path, clean):
    write_steps(tmp_path, clean=clean)
    trace = Trace.open(tmp_path)
    assert trace.steps["reward"].tolist() == [1, 2, 3, 4, 5, 6]
    assert len(trace.rollouts) == STEPS * PER_STEP
    assert len(trace.tokens(steps=[2])) == PER_STEP * 5
    assert trace.warnings == []
    assert trace.settings["num_generations"] == 8
    suffixes = {path.suffix for path in tmp_path.iterdir()} & {".arrow", ".parquet", ".crc"}
    assert suffixes == ({".parquet", ".crc"} if clean else {".arrow", ".crc"})


def test_a_full_trace_reads_the_same_from_memory_stream_and_parquet(tmp_path):
    rows = healthy_rows(steps=3)
    memory = Trace.from_rows(**rows)
    for clean in (True, False):
        writer = Writer(tmp_path / str(clean))
        for table, found in rows.items():
            writer.write(table, found)
        writer.close(clean=clean)
        trace = Trace.open(tmp_path / str(clean))
        for table in TABLES:
            assert trace.tables[table].to_table().equals(memory.tables[table].to_table())
        np.testing.assert_array_equal(trace.parts()["format"], memory.parts()["format"])
        np.testing.assert_array_equal(trace.tokens([2]).turn, memory.tokens([2]).turn)


def test_a_trace_still_being_written_shows_every_completed_step(tmp_path):
    writer = write_steps(tmp_path, close=False)
    assert Trace.open(tmp_path).steps["step"].tolist() == [1, 2, 3, 4, 5, 6]
    writer.write("steps", [{"step": 7}])
    writer.end_step()
    assert len(Trace.open(tmp_path).steps) == 7
    writer.close()
    assert len(Trace.open(tmp_path).steps) == 7


def test_a_truncated_stream_keeps_all_before_the_cut_and_says_what_is_lost(tmp_path):
    write_steps(tmp_path, clean=False)
    path = tmp_path / "rollouts.r0.0.arrow"
    cut = spans(path)[4][0] + 10
    os.truncate(path, cut)
    trace = Trace.open(tmp_path)
    assert len(trace.rollouts) == 3 * PER_STEP
    assert len(trace.steps) == STEPS
    assert any("rollouts.r0.0.arrow" in text and "3 batches" in text for text in trace.warnings)


def test_a_flipped_bit_in_a_stream_costs_its_batch_and_no_other(tmp_path):
    write_steps(tmp_path, clean=False)
    path = tmp_path / "rollouts.r0.0.arrow"
    start, end = spans(path)[3]
    flip(path, (start + end) // 2)
    trace = Trace.open(tmp_path)
    assert sorted(set(trace.rollouts["step"])) == [1, 2, 4, 5, 6]
    assert [text for text in trace.warnings if "batch 3" in text]


def test_where_parquet_and_stream_are_both_there_no_row_counts_twice(tmp_path):
    write_steps(tmp_path, clean=False)
    stream = (tmp_path / "steps.r0.0.arrow").read_bytes()
    pq.write_table(
        pa.ipc.open_stream(stream).read_all(), tmp_path / "steps.r0.0.parquet"
    )  # as if killed before the stream was removed
    assert len(Trace.open(tmp_path).steps) == STEPS


@pytest.mark.parametrize("clean", [True, False])
def test_files_of_another_schema_version_are_refused(tmp_path, clean, monkeypatch):
    monkeypatch.setattr("flatline.trace.files.SCHEMA_VERSION", 2)
    write_steps(tmp_path, range(1, 3), clean=clean)
    monkeypatch.undo()
    write_steps(tmp_path, range(3, 5), clean=clean)
    with pytest.raises(TraceError, match=r"schema 2; this flatline reads schema 1"):
        Trace.open(tmp_path)


def test_a_run_file_of_another_schema_version_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": 7, "flatline": "9.0"}')
    with pytest.raises(TraceError, match=r"schema 7(.|\n)*flatline 9.0"):
        Trace.open(tmp_path)


def test_a_column_that_an_older_flatline_did_not_have_is_null(tmp_path):
    write_steps(tmp_path)
    path = tmp_path / "steps.r0.0.parquet"
    table = pq.read_table(path)
    pq.write_table(
        table.drop_columns(["kl"]).replace_schema_metadata({"flatline_schema": "1"}), path
    )
    (tmp_path / "steps.r0.0.parquet.crc").unlink()
    trace = Trace.open(tmp_path)
    assert "kl" not in trace.steps
    assert "reward" in trace.steps
    assert trace.warnings == []


@pytest.mark.parametrize("what", ["missing", "file", "empty", "other"])
def test_what_is_no_trace_is_said_to_be_none(tmp_path, what):
    path = tmp_path / "x"
    if what == "file":
        path.write_text("hello")
    elif what != "missing":
        path.mkdir()
    if what == "other":
        (path / "run.json").write_text('{"name": "something else"}')
    with pytest.raises(TraceError, match=r"flatline.attach"):
        Trace.open(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", None])
def test_a_lost_run_file_costs_the_settings_and_not_the_tables(tmp_path, text):
    write_steps(tmp_path)
    path = tmp_path / "run.json"
    path.unlink() if text is None else path.write_text(text)
    trace = Trace.open(tmp_path)
    assert len(trace.steps) == STEPS
    assert trace.settings == {}
    assert "settings are unknown" in trace.warnings[0]


def test_a_run_without_a_step_opens(tmp_path):
    for clean in (True, False):
        Writer(tmp_path / str(clean), run=run_facts()).close(clean=clean)
        trace = Trace.open(tmp_path / str(clean))
        assert len(trace.steps) == len(trace.rollouts) == len(trace.tokens()) == 0
        assert trace.warnings == []


def test_nan_and_infinity_survive_the_files_and_leave_run_json_valid(tmp_path):
    with Recorder(tmp_path, settings={"beta": math.inf}) as recorder:
        recorder.log_rollouts([{"step": 1, "rollout": 0, "reward": math.inf}])
        recorder.log_step(step=1, reward=math.nan, metrics={"x": -math.inf})
    trace = Trace.open(tmp_path)
    assert math.isnan(trace.steps["reward"][0])
    assert trace.metric("x")[0] == -math.inf
    assert trace.rollouts["reward"][0] == math.inf
    text = (tmp_path / "run.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))


def test_two_runs_cannot_write_into_one_directory(tmp_path):
    writer = write_steps(tmp_path, close=False)
    with pytest.raises(TraceError, match=r"This process already records(.|\n)*`detach\(\)`"):
        Writer(tmp_path)
    writer.close()
    Writer(tmp_path).close()


def test_a_directory_that_cannot_be_written_is_refused_before_the_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TraceError, match="cannot be written"):
        Writer(tmp_path / "file" / "run")


def test_a_resumed_run_replaces_what_it_had_done_after_the_checkpoint(tmp_path):
    write_steps(tmp_path, range(1, 7), clean=False)
    write_steps(tmp_path, range(4, 6), shift=0.25)
    trace = Trace.open(tmp_path)
    assert trace.steps["reward"].tolist() == [1, 2, 3, 4.25, 5.25]
    assert trace.rollouts["step"].tolist() == np.repeat([1, 2, 3, 4, 5], PER_STEP).tolist()
    assert trace.rollouts["reward"].max() == 1.25
    assert trace.token_steps.tolist() == [1, 2, 3, 4, 5]
    answer = trace.query("SELECT count(*) n, max(step) last FROM rollouts").to_pylist()
    assert answer == [{"n": 5 * PER_STEP, "last": 5}]


def sparse_weights(folder, steps, *, rollouts=True):
    """A start of a run that looks at its weights at step 1 and every hundredth."""
    writer = Writer(folder)
    for step in steps:
        if rollouts:
            writer.write("rollouts", rollout_rows([[1.0]], step=step))
        if step == 1 or step % 100 == 0:
            writer.write("weights", [{"step": step, "name": "w", "update_norm": 1.0}])
        writer.write("steps", [{"step": step, "reward": 1.0}])
    writer.close()


@pytest.mark.parametrize("again", [range(151, 181), range(151, 301)], ids=["without", "with"])
def test_a_branch_that_was_given_up_leaves_no_weights_behind(tmp_path, again):
    sparse_weights(tmp_path, range(1, 211))
    sparse_weights(tmp_path, again)
    trace = Trace.open(tmp_path)
    found = [1, 100, *(step for step in again if step % 100 == 0)]
    assert trace.weights["step"].tolist() == found
    asked = trace.query("SELECT step FROM weights ORDER BY step").to_pylist()
    assert [row["step"] for row in asked] == found
    assert trace.steps["step"].max() == again[-1]


def test_a_start_that_was_killed_in_its_first_step_ends_the_branch_in_every_table(tmp_path):
    sparse_weights(tmp_path, range(1, 211))
    writer = Writer(tmp_path)
    writer.write("rollouts", rollout_rows([[0.0]], step=151))
    writer.close(clean=False)
    trace = Trace.open(tmp_path)
    assert trace.rollouts["step"].max() == 151
    assert trace.steps["step"].max() == 150
    assert trace.weights["step"].tolist() == [1, 100]
    last = "SELECT max(s.step) s, max(w.step) w FROM steps s, weights w"
    assert trace.query(last).to_pylist() == [{"s": 150, "w": 100}]


def test_a_run_started_anew_in_the_same_directory_replaces_the_old_one(tmp_path):
    write_steps(tmp_path, range(1, 7))
    write_steps(tmp_path, range(1, 3), shift=0.25)
    assert Trace.open(tmp_path).steps["reward"].tolist() == [1.25, 2.25]


def test_several_processes_are_read_as_one_run_in_order_of_step_and_rollout(tmp_path):
    writers = [write_steps(tmp_path, range(1, 3), rank=rank, close=False) for rank in (1, 0, 2)]
    for writer in writers:
        writer.close()
    trace = Trace.open(tmp_path)
    assert trace.rollouts["step"].tolist() == np.repeat([1, 2], 3 * PER_STEP).tolist()
    assert trace.rollouts["rollout"].tolist() == [*range(3 * PER_STEP)] * 2
    assert len(trace.tokens()) == 2 * 3 * PER_STEP * 5
    assert trace.steps["step"].tolist() == [1, 2]
    assert trace.tokens([2]).rollout_rows.tolist() == [*range(24, 48)]


def test_a_run_resumed_with_fewer_processes_keeps_nothing_of_the_others(tmp_path):
    for writer in [write_steps(tmp_path, rank=rank, close=False) for rank in (0, 1)]:
        writer.close(clean=False)
    write_steps(tmp_path, range(3, 5), shift=0.25)
    trace = Trace.open(tmp_path)
    steps, counts = np.unique(trace.rollouts["step"], return_counts=True)
    assert dict(zip(steps.tolist(), counts.tolist(), strict=True)) == {1: 16, 2: 16, 3: 8, 4: 8}
    for writer in [write_steps(tmp_path, [5], rank=rank, close=False) for rank in (1, 0)]:
        writer.close()
    assert {path.name for path in tmp_path.glob("rollouts.*.2.parquet")} == {
        "rollouts.r0.2.parquet",
        "rollouts.r1.2.parquet",
    }
    assert len(Trace.open(tmp_path).rollouts) == 16 * 2 + 8 * 2 + 16


def kill_and_read(folder, seconds):
    """Kill a process that writes steps in a loop; the steps it had completed, and the trace."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    said = [first, *child.stdout.readlines()]
    child.wait()
    return [int(line) for line in said if line.endswith("\n")], Trace.open(folder)


def assert_all_there(done, trace):
    assert done
    assert trace.warnings == []
    assert set(done) <= set(trace.steps["step"].astype(int).tolist())
    steps, counts = np.unique(trace.rollouts["step"], return_counts=True)
    whole = steps[counts == PER_STEP].astype(int).tolist()
    assert set(done) <= set(whole)
    assert set(done) <= set(trace.token_steps.tolist())


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_killed_process_loses_no_completed_step(tmp_path, seconds):
    done, trace = kill_and_read(tmp_path / "run", seconds)
    assert_all_there(done, trace)


def test_a_reader_beside_a_busy_writer_never_sees_damage(tmp_path):
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    seen = []
    for _ in range(10):
        trace = Trace.open(tmp_path)
        seen.append(len(trace.steps))
        assert len(trace.tokens(steps=[1])) == PER_STEP * 200
        assert trace.warnings == []
    child.kill()
    child.wait()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


def test_a_stream_file_is_never_written_over(tmp_path):
    StreamFile(tmp_path / "steps.r0.0.arrow", "steps").close()
    with pytest.raises(FileExistsError):
        StreamFile(tmp_path / "steps.r0.0.arrow", "steps")
