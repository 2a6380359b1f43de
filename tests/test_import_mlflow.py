"""MLflow's local stores, read without MLflow; and with the real client where it is installed."""

import math
import sqlite3

import pytest

from flatline.trace.importers import open_log
from tests.log_files import refusal

# The columns that are read, with the types that MLflow 3.17 gives them.
SCHEMA = """
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), start_time BIGINT);
CREATE TABLE metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL,
    is_nan BOOLEAN DEFAULT '0' NOT NULL);
CREATE TABLE params ("key" VARCHAR(250) NOT NULL, value VARCHAR(8000) NOT NULL,
    run_uuid VARCHAR(32) NOT NULL);
"""


def database(path, *runs):
    with sqlite3.connect(path) as store:
        store.executescript(SCHEMA)
        for number, run in enumerate(runs):
            store.execute("INSERT INTO runs VALUES (?, ?, ?)", (run, f"name of {run}", number))
            store.execute("INSERT INTO params VALUES ('beta', '0.04', ?)", (run,))
            store.execute("INSERT INTO params VALUES ('num_generations', '8', ?)", (run,))
            store.execute("INSERT INTO params VALUES ('bf16', 'True', ?)", (run,))
            for step in range(3):
                values = (("train/reward", number + step / 10, 0), ("kl", 0.0, step == 1))
                for key, value, missing in values:
                    row = (key, value, step, run, step, missing)
                    store.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
    store.close()
    return path


def test_the_only_run_of_a_database_is_read_with_its_settings(tmp_path):
    database(tmp_path / "mlflow.db", "one")
    assert len(open_log(tmp_path).steps) == 3, "the folder will do"
    trace = open_log(tmp_path / "mlflow.db")
    assert trace.run["source"] == "import:mlflow"
    assert trace.steps["reward"].tolist() == [0.0, 0.1, 0.2]
    assert trace.steps["kl"][0] == 0.0 and math.isnan(trace.steps["kl"][1])
    assert [trace.settings[name] for name in ("beta", "num_generations", "bf16")] == [0.04, 8, True]


def test_a_database_with_several_runs_wants_one_to_be_named(tmp_path):
    path = database(tmp_path / "mlflow.db", "one", "two")
    assert "mlflow.db#two" in refusal(path)
    assert open_log(f"{path}#two").steps["reward"].tolist() == [1.0, 1.1, 1.2]
    assert open_log(f"{path}#name of one").steps["reward"].tolist() == [0.0, 0.1, 0.2]
    assert "0 runs called 'three'" in refusal(f"{path}#three")


def test_another_database_is_refused_and_not_asked_what_it_offers(tmp_path):
    path = tmp_path / "trap.db"
    with sqlite3.connect(path) as store:
        store.executescript(SCHEMA.replace("metrics", "other"))
        store.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
            " SELECT i AS key, i AS value, i AS step, 'one' AS run_uuid, 0 AS is_nan FROM n"
        )
    store.close()
    assert "without MLflow's tables metrics" in refusal(path)


def test_a_damaged_database_is_refused(tmp_path):
    path = database(tmp_path / "mlflow.db", "one")
    path.write_bytes(path.read_bytes()[:5000])
    assert "cannot be read as an SQLite database" in refusal(path)


def file_run(folder):
    """As MLflow's file store leaves a run: a line `TIME VALUE STEP` for every value."""
    (folder / "metrics" / "train").mkdir(parents=True)
    (folder / "params").mkdir()
    (folder / "meta.yaml").write_text("run_id: x\n")
    (folder / "metrics" / "train" / "reward").write_text("1794747257582 0.5 1\n17947472 0.6 2\n")
    (folder / "metrics" / "kl").write_text("1794747257582 nan 1\nbroken\n")
    (folder / "params" / "beta").write_text("0.04")
    return folder


def test_a_run_of_the_file_store_is_read_and_a_broken_line_is_told(tmp_path):
    file_run(tmp_path / "mlruns" / "7" / "abc")
    trace = open_log(tmp_path)
    assert trace.steps["reward"].tolist() == [0.5, 0.6]
    assert trace.settings["beta"] == 0.04
    assert "kl line 2" in trace.warnings[0]


def test_a_file_store_with_two_runs_is_refused_with_their_folders(tmp_path):
    for run in ("abc", "def"):
        file_run(tmp_path / "mlruns" / "7" / run)
    assert "mlruns/7/def" in refusal(tmp_path)
    assert len(open_log(tmp_path / "mlruns" / "7" / "def").steps["reward"]) == 2


@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_what_mlflow_itself_writes_is_read(tmp_path, store, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"sqlite:///{tmp_path}/mlflow.db" if store == "sqlite" else f"file://{tmp_path}/mlruns"
    client = tracking.MlflowClient(uri)
    run = client.create_run(client.create_experiment("x", f"file://{tmp_path}/art")).info.run_id
    for step in range(3):
        client.log_metric(run, "train/reward", step / 10, step=step)
    client.log_param(run, "beta", 0.04)
    trace = open_log(tmp_path)
    assert trace.steps["reward"].tolist() == [0.0, 0.1, 0.2]
    assert trace.settings["beta"] == 0.04
