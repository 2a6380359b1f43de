"""`flatline watch` follows what grows, and ends cleanly."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from flatline.alarms import following
from flatline.cli import app
from flatline.trace import Recorder
from tests import tracker_logs


def rows_of(rewards):
    return [{"step": i + 1, "reward": float(r), "loss": 0.1} for i, r in enumerate(rewards)]


def state(path, rewards):
    path.write_text(json.dumps({"log_history": rows_of(rewards), "global_step": len(rewards)}))


def noise(n, level, seed=0):
    return level + 0.03 * np.random.default_rng(seed).standard_normal(n)


@pytest.fixture
def growing(tmp_path, monkeypatch):
    """A log that has ten more rows whenever one waits, then falls, then is left alone."""
    file = tmp_path / "trainer_state.json"
    rewards = [*noise(20, 0.6), *noise(20, 0.2, 3)]
    seen = [10]

    def sleep(_):
        seen[0] += 2
        if seen[0] > len(rewards):
            raise KeyboardInterrupt
        state(file, rewards[: seen[0]])

    state(file, rewards[:10])
    monkeypatch.setattr(following.time, "sleep", sleep)
    return file


def test_a_log_is_followed_and_what_turns_is_told_once(growing):
    result = CliRunner().invoke(app, ["watch", str(growing)])
    lines = [line for line in result.stdout.splitlines() if "reward-falls" in line]
    assert len(lines) == 1
    step = int(lines[0].partition("at step ")[2].partition(":")[0])
    assert 24 <= step <= 36
    assert result.exit_code == 1
    assert "Stopped" in result.stderr


def test_a_run_that_is_over_ends_it(tmp_path):
    with Recorder(tmp_path / "run") as recorder:
        for row in rows_of(noise(8, 0.5)):
            recorder.log_step(**row)
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "The run is over" in result.stderr


def test_what_cannot_be_read_is_said(tmp_path):
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "missing.json")])
    assert result.exit_code == 2
    assert "There is no file" in result.stderr


def test_a_log_that_is_cut_off_while_it_is_written_is_waited_for(tmp_path, monkeypatch):
    file = tmp_path / "trainer_state.json"
    state(file, noise(8, 0.5))
    waits = iter([lambda: file.write_text("{"), lambda: state(file, noise(9, 0.5))])

    def sleep(_):
        try:
            next(waits)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(following.time, "sleep", sleep)
    assert CliRunner().invoke(app, ["watch", str(file)]).exit_code == 0


def test_ctrl_c_leaves_no_traceback(tmp_path):
    file = tmp_path / "trainer_state.json"
    state(file, noise(8, 0.5))
    child = subprocess.Popen(
        [sys.executable, "-c", "from flatline.cli import main; main()", "watch", str(file)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert child.stderr is not None
    assert "Watching" in child.stderr.readline()
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "Traceback" not in said


def test_a_log_is_followed_without_torch():
    code = "import sys, flatline.alarms.following; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def trackio(folder, rows):
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "p.db")) as store, store:
        store.execute("CREATE TABLE metrics (id, run_name, step, metrics)")
        kept = [(row["step"], "r", row["step"], json.dumps(row)) for row in rows]
        store.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", kept)


FORMATS = {
    tracker_logs.trainer_state: "",
    tracker_logs.tensorboard: "",
    tracker_logs.mlflow_database: "mlflow.db#r",
    tracker_logs.wandb_offline: "",
    trackio: "trackio:p/r",
}
"""Writer -> what is watched, in its folder."""


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_a_log_of_every_kind_of_store_is_followed_while_it_grows(tmp_path, monkeypatch, write):
    folder, rows = tmp_path / "run", rows_of([*noise(20, 0.6), *noise(20, 0.2, 3)])
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    lengths = [20, 30, 40]

    def grow(_):
        if not lengths:
            raise KeyboardInterrupt
        shutil.rmtree(folder)
        write(folder, rows[: lengths.pop(0)])

    write(folder, rows[:10])
    monkeypatch.setattr(following.time, "sleep", grow)
    watched = FORMATS[write]
    source = watched if watched.startswith("trackio:") else str(folder / watched)
    result = CliRunner().invoke(app, ["watch", source])
    assert result.stdout.count("reward-falls") == 1, result.output
    assert result.exit_code == 1
