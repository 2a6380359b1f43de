"""A cell writes one result, whatever happens to its training."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import flatline.diagnosis.checkup
import flatline.training.run
import flatline.training.trainer
from bench.cell import diagnosed_again, run_cell
from bench.plan import Cell, Kind
from bench.results import read_all
from flatline.cli import app
from flatline.diagnosis.report import Report
from flatline.stats import Estimate
from flatline.trace import Recorder
from tests.traces import rollout_rows

CELL = Cell(
    name="kl-sign-s0",
    kind=Kind.FAULT,
    changes={"seed": 0, "max_steps": 20, "fault": "kl-sign"},
    planted=("kl-sign",),
    wanted=("H03",),
    first=("H03",),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A planned cell whose trainer is built and looked at by nobody."""
    report = Report(subject="", findings=(), trend=None)
    monkeypatch.setattr(flatline.training.trainer, "build", lambda config: config)
    monkeypatch.setattr(flatline.diagnosis.checkup, "checkup", lambda built, hypotheses: report)
    path = tmp_path / "cells" / CELL.name
    path.mkdir(parents=True)
    (path / "plan.json").write_text(json.dumps(CELL.to_json()))
    return path


def trains(monkeypatch, *, error=None):
    """Training that records two steps and then ends, well or not."""

    def train(config):
        with Recorder(config.output_dir) as recorder:
            for step in (1, 2):
                recorder.log_step(step=step, reward=0.5, seconds=2.0, metrics={"kl": 0.01})
                recorder.log_rollouts(rollout_rows([[0.0, 1.0]], step=step))
        if error:
            raise error
        score = SimpleNamespace(problems=["a", "b"], rewards=[0.5, 0.75])
        gain = Estimate(0.1, 0.05, 0.15, 2)
        return SimpleNamespace(steps=2, seconds=4.0, scores=[score, score], gain=gain)

    monkeypatch.setattr(flatline.training.run, "train", train)


def test_a_cell_is_looked_at_before_and_after_training(folder, monkeypatch):
    trains(monkeypatch)
    run_cell(folder, keep_trace=False)
    (one,) = read_all(folder.parents[1])
    assert one.cell == CELL
    assert (one.failure, one.after, one.learnt) == (None, 0.625, True)
    assert sorted(one.diagnoses) == [10, 20] and one.last.asked > 40
    assert sorted(one.ablation) == ["log", "rollouts"]
    assert one.seconds_until[20] == 4.0
    assert not (folder / "run").exists()


def test_training_that_raises_is_a_result_and_is_diagnosed(folder, monkeypatch):
    trains(monkeypatch, error=ValueError("all is NaN"))
    run_cell(folder, keep_trace=True)
    (one,) = read_all(folder.parents[1])
    assert one.failure == "ValueError: all is NaN"
    assert one.heldout is None and one.last.asked > 40
    assert (folder / "run" / "run.json").is_file()


def test_a_run_that_recorded_nothing_is_a_result_too(folder, monkeypatch):
    def train(config):
        raise RuntimeError("before the first step")

    monkeypatch.setattr(flatline.training.run, "train", train)
    run_cell(folder, keep_trace=False)
    (one,) = read_all(folder.parents[1])
    assert one.diagnoses == {} and one.last.alarms == ()


def test_a_kept_trace_is_diagnosed_anew_and_the_rest_stays(folder, monkeypatch):
    trains(monkeypatch)
    run_cell(folder, keep_trace=True)
    path = folder / "cell.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "diagnose": {}}))
    assert diagnosed_again(folder)
    after = json.loads(path.read_text())
    assert sorted(after["diagnose"]) == ["10", "20"]
    assert (after["checkup"], after["heldout"]) == (before["checkup"], before["heldout"])


def test_the_commands_print_a_plan_and_a_report(folder, tmp_path, monkeypatch):
    trains(monkeypatch)
    run_cell(folder, keep_trace=False)
    out, empty = str(folder.parents[1]), str(tmp_path / "empty")
    runner = CliRunner()
    planned = runner.invoke(app, ["bench", "--quick", "--dry-run", "--jobs", "2", "--out", empty])
    assert planned.exit_code == 0 and "10 of 10 cells to run" in planned.stdout
    shown = runner.invoke(app, ["bench", "report", out])
    assert "| kl-sign | H03 |" in shown.stdout
    figures = json.loads(runner.invoke(app, ["bench", "report", out, "--json"]).stdout)
    assert figures["cells"] == {"fault": 1}


def test_a_folder_without_a_benchmark_is_bad_input(tmp_path):
    shown = CliRunner().invoke(app, ["bench", "report", str(tmp_path)])
    assert shown.exit_code == 2
