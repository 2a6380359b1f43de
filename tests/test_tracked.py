"""Runs by the name that their tracker knows them by."""

import json
import sqlite3
import sys
from types import SimpleNamespace

import pytest

from flatline.errors import TraceError
from flatline.trace.importers import open_log
from flatline.trace.importers.tracked import tracker_of

ROWS = [{"_step": at, "train/global_step": at + 1, "train/reward": 0.1 * at} for at in range(8)]


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for W&B's client, as far as its manual promises it."""

    def run(path):
        if path != "me/project/abc":
            raise ValueError("Could not find run <Run me/project/zzz (not found)>")
        return SimpleNamespace(config={"beta": 0.04}, scan_history=lambda: iter(ROWS))

    module = SimpleNamespace(Api=lambda: SimpleNamespace(run=run), __spec__=object())
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr("flatline.trace.importers.tracked.find_spec", lambda name: object())


def test_a_run_of_wandb_is_read_with_its_settings(wandb):
    trace = open_log("wandb:me/project/abc")
    assert trace.steps["reward"].tolist() == [row["train/reward"] for row in ROWS]
    assert trace.steps["step"].tolist() == list(range(1, 9))
    assert trace.settings["beta"] == 0.04


def test_what_the_client_raises_is_told_with_what_to_check(wandb):
    with pytest.raises(TraceError, match=r"did not give the run .*Could not find run"):
        open_log("wandb:me/project/zzz")


def test_without_the_client_one_message_says_what_to_install_or_to_give(monkeypatch):
    monkeypatch.setattr("flatline.trace.importers.tracked.find_spec", lambda name: None)
    with pytest.raises(TraceError, match=r"pip install wandb.*run-\*\.wandb"):
        open_log("wandb:me/project/abc")
    with pytest.raises(TraceError, match=r"pip install mlflow"):
        open_log("mlflow:http://localhost:5000#abc")


@pytest.mark.parametrize("name", ["wandb:abc", "wandb:a/b", "mlflow:uri", "trackio:x", "trackio:/"])
def test_a_name_that_is_none_is_refused_with_an_example(name):
    with pytest.raises(TraceError, match="names no run"):
        open_log(name)


def test_a_server_of_mlflow_is_asked_through_its_client(monkeypatch):
    history = {"reward": [0.1, 0.2, 0.3], "kl": [0.0, 0.01, 0.02]}

    class Client:
        def __init__(self, tracking_uri):
            assert tracking_uri == "http://localhost:5000"

        def get_run(self, run):
            assert run == "abc"
            return SimpleNamespace(data=SimpleNamespace(metrics=history, params={"beta": "0.04"}))

        def get_metric_history(self, run, name):
            return [SimpleNamespace(step=at, value=v) for at, v in enumerate(history[name], 1)]

    module = SimpleNamespace(tracking=SimpleNamespace(MlflowClient=Client), __spec__=object())
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setattr("flatline.trace.importers.tracked.find_spec", lambda name: object())
    trace = open_log("mlflow:http://localhost:5000#abc")
    assert trace.steps["kl"].tolist() == history["kl"]


def trackio(folder, runs):
    """A database as trackio's page on its storage describes it."""
    store = sqlite3.connect(folder / "my-project.db")
    store.execute(
        "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, "
        "step INTEGER, metrics TEXT)"
    )
    for run, rewards in runs.items():
        for step, reward in enumerate(rewards, 1):
            row = ("2026-01-01", run, step, json.dumps({"reward": reward, "note": "x"}))
            sql = "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)"
            store.execute(sql, row)
    store.commit()
    store.close()


def test_a_run_of_trackio_is_read_from_its_database(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio(tmp_path, {"one": [0.1, 0.2], "two": [0.3, 0.4, 0.5]})
    assert open_log("trackio:my-project/two").steps["reward"].tolist() == [0.3, 0.4, 0.5]
    with pytest.raises(TraceError, match="Its runs: one, two"):
        open_log("trackio:my-project/three")
    with pytest.raises(TraceError, match="TRACKIO_DIR"):
        open_log("trackio:other/one")


def test_a_file_that_is_called_like_a_tracker_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb:x").write_text("")
    assert tracker_of("wandb:x") is None
