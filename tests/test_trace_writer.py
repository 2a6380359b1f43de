"""Recording beside a training: a slow disk, a full one, a forgotten close, a fork."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from flatline.errors import TraceError
from flatline.trace import Recorder, Trace, backlog, writer
from flatline.trace.files import StreamFile
from flatline.trace.rows import to_batch
from flatline.trace.writer import Writer
from tests.traces import rollout_rows


def token_rows(step, *, n=1000, rollouts=4):
    return [{"step": step, "rollout": i, "ids": np.arange(n)} for i in range(rollouts)]


@pytest.fixture
def slow_disk(monkeypatch):
    """Nothing reaches the files until the event is set."""
    go = threading.Event()
    append = StreamFile.append

    def wait(self, batch):
        go.wait(20)
        append(self, batch)

    monkeypatch.setattr(StreamFile, "append", wait)
    monkeypatch.setattr(writer, "FLUSH_WAIT", 0.05)
    monkeypatch.setattr(backlog, "ROOM_WAIT", 0.05)
    monkeypatch.setattr(backlog, "MOST_BYTES", 60_000)
    yield go
    go.set()


@pytest.fixture
def full_disk(monkeypatch):
    def fail(self, batch):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StreamFile, "append", fail)


def test_a_full_queue_drops_token_detail_and_never_rollouts_or_steps(tmp_path, slow_disk, capsys):
    sink = Writer(tmp_path)
    for step in range(1, 21):
        sink.write("rollouts", rollout_rows([[1.0, 0.0]], step=step))
        sink.write("tokens", token_rows(step))
        sink.write("steps", [{"step": step, "reward": 1.0}])
    assert sink.dropped > 0
    slow_disk.set()
    sink.close()
    trace = Trace.open(tmp_path)
    assert len(trace.steps) == 20
    assert len(trace.rollouts) == 40
    assert len(trace.tables["tokens"]) == 80 - sink.dropped
    assert trace.run["dropped_tokens"] == sink.dropped
    assert capsys.readouterr().err.count("token detail") == 1


def test_work_that_is_dropped_leaves_what_is_still_to_be_done(tmp_path, slow_disk):
    sink, done = Writer(tmp_path), []
    sink.write("steps", [{"step": 0}])  # keeps the thread busy
    for n in range(3):
        sink.do(
            lambda n=n: done.append(n),
            size=40_000,
            token_rows=5,
            otherwise=lambda n=n: done.append(f"not {n}"),
        )
    sink.write("rollouts", rollout_rows([[1.0] * 64], completion="x" * 500))
    assert sink.dropped == 15
    slow_disk.set()
    sink.close()
    assert done == ["not 0", "not 1", "not 2"]


def test_a_hanging_disk_costs_one_short_wait_and_not_one_in_every_step(tmp_path, slow_disk):
    sink = Writer(tmp_path)
    start = time.perf_counter()
    for step in range(1, 101):
        sink.write("rollouts", rollout_rows([[1.0, 0.0]], step=step, completion="x" * 500))
        sink.write("steps", [{"step": step}])
        sink.end_step()
    assert time.perf_counter() - start < 2.0
    slow_disk.set()
    sink.close()
    assert len(Trace.open(tmp_path).steps) == 100
    assert len(Trace.open(tmp_path).rollouts) == 200


def test_a_full_disk_ends_the_recording_and_not_the_training(tmp_path, full_disk, capsys):
    sink = Writer(tmp_path)
    for step in range(1, 50):
        sink.write("rollouts", rollout_rows([[1.0, 0.0]], step=step))
        sink.end_step()
    sink.update_run(note="x")
    sink.close()
    said = capsys.readouterr().err
    assert said.count("recording stopped, the training goes on") == 1
    assert "No space left" in said
    assert len(Trace.open(tmp_path).rollouts) == 0
    Writer(tmp_path).close()  # the lock was let go


def test_a_disk_that_fills_up_when_the_run_ends_keeps_the_streams(tmp_path, monkeypatch, capsys):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "compact", fail)
    sink = Writer(tmp_path)
    sink.write("steps", [{"step": 1}])
    sink.close()
    assert "No space left" in capsys.readouterr().err
    assert len(Trace.open(tmp_path).steps) == 1


@pytest.mark.parametrize(
    "arrays",
    [
        [np.array([3, 1]), None, np.array([], dtype=np.int64), np.array([2**31 - 1, -(2**31)])],
        [np.array([3, 1], dtype=np.int32), np.array([7], dtype=np.int64)],
        [None, np.array([], dtype=np.int32)],
    ],
)
def test_arrays_of_ids_become_the_list_that_arrow_makes_of_them(arrays):
    rows = [{"step": 1, "rollout": at, "ids": ids} for at, ids in enumerate(arrays)]
    given = [None if ids is None else ids.tolist() for ids in arrays]
    found = to_batch("tokens", rows).column("ids")
    found.validate(full=True)
    assert found.equals(pa.array(given, type=pa.list_(pa.int32())))


def test_an_id_that_does_not_fit_is_refused_and_not_wrapped_around():
    rows = [{"step": 1, "rollout": 0, "ids": np.array([5, 2**31])}]
    with pytest.raises(TraceError, match=r"tokens\.ids"):
        to_batch("tokens", rows)


def test_closing_twice_and_writing_after_it_do_nothing(tmp_path):
    sink = Writer(tmp_path)
    sink.close()
    sink.close()
    sink.write("steps", [{"step": 1}])
    sink.end_step()
    assert len(Trace.open(tmp_path).steps) == 0


def test_facts_are_merged_into_run_json_by_process_0_alone(tmp_path):
    first, second = Writer(tmp_path, run={"seed": 3, "a": 1}), Writer(tmp_path, rank=1)
    first.update_run(a=2, b=[1])
    second.update_run(a=99)
    first.close()
    second.close()
    run = Trace.open(tmp_path).run
    assert (run["seed"], run["a"], run["b"], run["schema"]) == (3, 2, [1], 1)
    assert run["created"]
    assert run["ended"]


FORGETFUL = """
import sys
from flatline.trace.writer import Writer
sink = Writer(sys.argv[1])
for step in range(1, 200):
    sink.write("steps", [{"step": step}])
"""


@pytest.mark.parametrize("ending", ["", "1 / 0"])
def test_a_process_that_ends_without_closing_keeps_everything_and_does_not_hang(tmp_path, ending):
    code = [sys.executable, "-c", FORGETFUL + ending, str(tmp_path)]
    subprocess.run(code, check=False, timeout=60, stderr=subprocess.DEVNULL)
    assert len(Trace.open(tmp_path).steps) == 199


KILLED_WITH_A_CHILD = """
import os, signal, sys, time
from flatline.trace import Recorder
recorder = Recorder(sys.argv[1])
recorder.log_step(step=1, reward=0.5)
child = os.fork()
if not child:
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
if len(sys.argv) > 2:
    time.sleep(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _with_a_child(folder, *more):
    """A run that has forked, and the number of its child."""
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED_WITH_A_CHILD, str(folder), *more],
        stdout=subprocess.PIPE,
        text=True,
    )
    return run, int(run.stdout.readline())


def test_a_child_that_outlives_its_killed_run_does_not_hold_its_lock(tmp_path):
    run, child = _with_a_child(tmp_path)
    try:
        assert run.wait(30) == -signal.SIGKILL
        os.kill(child, 0)  # it lives
        assert Trace.open(tmp_path).stopped is not None
        Writer(tmp_path).close()  # and a new start is not refused
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_writes_nothing_and_closes_nothing(tmp_path):
    sink = Writer(tmp_path)
    child = os.fork()
    if not child:
        sink.write("steps", [{"step": 99}])
        sink.end_step()
        sink.close()
        os._exit(0)
    os.waitpid(child, 0)
    sink.write("steps", [{"step": 1}])
    sink.close()
    assert Trace.open(tmp_path).steps["step"].tolist() == [1]


def test_a_recorder_serves_any_loop(tmp_path):
    with Recorder(tmp_path, settings={"num_generations": 2}, seed=7) as recorder:
        recorder.log_vocabulary({0: "a", 1: "b"})
        for step in (1, 2):
            recorder.log_rollouts(rollout_rows([[1.0, 0.0]], step=step))
            recorder.log_tokens([{"step": step, "rollout": 0, "ids": [0, 1], "trained": [1, 1]}])
            recorder.log_weights([{"step": step, "name": "w", "norm": 1.0}])
            recorder.log_step(step=step, reward=0.5, metrics={"mine": 3.0})
    trace = Trace.open(tmp_path)
    assert trace.metric("mine").tolist() == [3.0, 3.0]
    assert trace.decode(trace.tokens([2]).ids) == "ab"
    assert trace.settings["num_generations"] == 2
    assert trace.settings["beta"] is None
    assert (trace.run["source"], trace.run["seed"]) == ("recorder", 7)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda r: r.log_step(step=1, rewrd=1.0), "Did you mean `reward`"),
        (lambda r: r.log_rollouts([{"step": 1, "rollout": 0, "tool_call": 1}]), "`tool_calls`"),
        (lambda r: r.log_rollouts([{"reward": 1.0}]), "lacks `step`"),
        (lambda r: r.log_step(step=1, reward="good"), "steps.reward"),
        (
            lambda r: r.log_tokens([{"step": 1, "rollout": 0, "ids": [1, 2], "trained": [1]}]),
            "1 entries for 2 tokens",
        ),
        (
            lambda r: r.log_tokens([{"step": 1, "rollout": 0, "ids": [], "prompt_attended": [1]}]),
            "1 entries for 0 tokens",
        ),
        (lambda r: r.log_step(step=-1, reward=1.0), "counted from 0"),
        (
            lambda r: r.log_tokens([{"step": 1, "rollout": 0, "ids": [1], "author": [9]}]),
            "holds 9.*\n.*1 model",
        ),
        (lambda r: r.log_rollouts([{"step": 1, "rollout": 0}] * 2), "step 1, rollout 0 already"),
    ],
)
def test_a_recorder_refuses_what_would_be_lost_without_a_word(tmp_path, call, said):
    with Recorder(tmp_path) as recorder, pytest.raises(TraceError, match=said):
        call(recorder)
    assert len(Trace.open(tmp_path).steps) == 0


def test_a_step_is_logged_once(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.1)
        recorder.log_step(step=2, reward=0.2)
        with pytest.raises(TraceError, match="step 2 already"):
            recorder.log_step(step=2, heldout_reward=0.9)
    assert Trace.open(tmp_path).steps["reward"].tolist() == pytest.approx([0.1, 0.2])


def test_a_row_after_the_end_is_an_error_and_not_lost(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.1)
    with pytest.raises(TraceError, match="closed"):
        recorder.log_step(step=2, reward=0.2)


@pytest.mark.parametrize("settings", [{"beta": "0.04"}, {"num_generations": [8]}])
def test_a_recorder_refuses_settings_that_are_no_numbers(tmp_path, settings):
    with pytest.raises(TraceError, match="reckons with a number"):
        Recorder(tmp_path, settings=settings)


def test_beside_a_trainer_on_the_cpu_work_waits_for_the_end_of_the_step(tmp_path):
    done = threading.Event()
    writer = Writer(tmp_path / "run", beside=False)
    writer.do(done.set)
    assert not done.wait(0.2)
    writer.end_step()
    assert done.is_set()
    writer.close()
