"""Several logs, or a folder of them: one table, and what differs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.diagnosis.several import diagnose_several
from flatline.trace.importers.several import logs_in

LOGS = Path(__file__).parents[1] / "docs" / "real-logs"


@pytest.fixture
def folder(tmp_path):
    for name in ("grpo-lora.json", "collapse-right.json"):
        (tmp_path / name).write_bytes((LOGS / name).read_bytes())
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_a_folder_of_logs_is_all_of_them_and_a_folder_of_one_is_itself(folder):
    assert logs_in(str(folder)) == [
        str(folder / "collapse-right.json"),
        str(folder / "grpo-lora.json"),
    ]
    (folder / "collapse-right.json").unlink()
    assert logs_in(str(folder)) == [str(folder)]


def test_a_folder_of_checkpoints_is_one_run(tmp_path):
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert logs_in(str(tmp_path)) == [str(tmp_path)]


def test_what_differs_is_told_and_what_does_not_is_not(folder):
    several = diagnose_several(logs_in(str(folder)))
    told = " ".join(several.differs)
    assert "H43 behaviour-collapse only in collapse-right.json." in told
    assert "`max_steps`: 40 in collapse-right.json, 60 in grpo-lora.json." in told
    assert "tokens of a completion" in told
    assert "The reward:" not in told, "it rises in both"


def test_the_table_names_every_run_and_the_exit_code_is_of_the_worst(folder):
    found = run(folder)
    assert found.exit_code == 1
    assert "What differs" in found.output
    assert "collapse-right.json" in found.output
    assert run(folder / "grpo-lora.json", folder / "grpo-lora.json").exit_code == 0


def test_json_has_every_report(folder):
    found = json.loads(run(folder, "--json").output)
    assert [len(one["findings"]) > 0 for one in found["runs"]] == [True, True]
    assert found["differs"]


def test_a_column_without_any_number_is_not_compared(tmp_path, recwarn):
    for name, kl in (("a", float("nan")), ("b", 0.1), ("c", 0.5)):
        rows = [{"step": step, "reward": 0.5, "kl": kl} for step in range(1, 13)]
        (tmp_path / f"{name}.json").write_text(json.dumps({"log_history": rows}))
    told = [one for one in json.loads(run(tmp_path, "--json").output)["differs"] if "KL" in one]
    assert told == ["The KL, last third: 0.1 in b.json, 0.5 in c.json."]
    assert not [one for one in recwarn if "empty slice" in str(one.message)]


def test_what_is_no_log_is_left_out_and_said(folder):
    (folder / "notes.json").write_text('{"a": 1}')
    found = run(folder)
    assert "Left out:" in found.output
    assert "notes.json" in found.output.replace("\n", "")


def test_nothing_but_no_logs_is_an_error_that_says_why(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"a": 1}')
    found = run(tmp_path)
    assert found.exit_code == 2


def test_options_about_one_run_are_refused(folder):
    found = run(folder, "--junit", folder / "out.xml")
    assert found.exit_code == 2
