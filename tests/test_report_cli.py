"""`flatline report`: what it writes, and what it says when it cannot."""

import json

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from tests.report_pages import record


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


def test_a_run_of_another_schema_version_is_refused(tmp_path):
    folder = record(tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "schema": 99}))
    done = run(folder, "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "schema 99" in done.stderr


def test_an_output_that_cannot_be_written_is_bad_input(tmp_path):
    folder = record(tmp_path / "run")
    done = run(folder, "-o", tmp_path)
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
