"""`flatline report`: what it writes, and what it says when it cannot."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from tests.report_pages import Page, record


def run(*arguments: object):
    return CliRunner().invoke(app, ["report", *map(str, arguments)], prog_name="flatline")


def test_a_run_becomes_one_file_whose_path_is_printed(tmp_path):
    folder = record(tmp_path / "run")
    output = tmp_path / "new" / "report.html"
    done = run(folder, "-o", output)
    assert done.exit_code == 0, done.stderr
    assert str(output) in done.stdout
    assert output.read_text().startswith("<!doctype html>")
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_path_without_anything_to_show_is_bad_input(tmp_path, name):
    (tmp_path / "empty").mkdir()
    done = run(tmp_path / name, "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert str(tmp_path / name) in done.stderr
    assert "Traceback" not in done.output


def test_two_runs_are_laid_over_each_other_in_one_file(tmp_path):
    runs = [heldout(tmp_path / name, reward) for name, reward in (("worse", 0.2), ("better", 0.8))]
    output = tmp_path / "report.html"
    done = run(runs[0], "--compare", runs[1], "-o", output)
    assert done.exit_code == 0, done.stderr
    page = Page(output.read_text())
    said = "On the same 40 held-out problems “better” ends higher: +0.600 ["
    assert said in page.text
    assert page.text.index(said) < page.text.index("What was recorded in worse")
    lines = page.figures["compare-reward"]["data"]
    assert [line["name"] for line in lines] == ["worse", "better"]
    assert {"reward", "compare-heldout_reward"} <= set(page.figures)


def heldout(folder: Path, reward: float) -> Path:
    """A run with an evaluation of 40 problems."""
    record(folder)
    plays = {"step": 10, "problems": [f"p{i}" for i in range(40)], "rewards": [reward] * 40}
    (folder / "heldout.jsonl").write_text(json.dumps(plays) + "\n")
    return folder


def test_only_runs_are_laid_over_each_other(tmp_path):
    folder = record(tmp_path / "run")
    (tmp_path / "journal" / "hypotheses").mkdir(parents=True)
    done = run(folder, "--compare", tmp_path / "journal", "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "as journal" in done.stderr and "--compare runs/b" in done.stderr
    assert not (tmp_path / "r.html").exists()
