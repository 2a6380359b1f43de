"""Several logs, or a folder of them: one table, and what differs."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.diagnosis.several import diagnose_several
from flatline.trace.importers.several import logs_in
from tests.log_files import refusal, written

LOGS = Path(__file__).parents[1] / "docs" / "real-logs"


@pytest.fixture
def folder(tmp_path):
    for name in ("grpo-lora.json", "collapse-right.json"):
        (tmp_path / name).write_bytes((LOGS / name).read_bytes())
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_a_folder_of_logs_is_all_of_them_and_a_folder_of_one_is_itself(folder):
    names = ("collapse-right.json", "grpo-lora.json")
    assert logs_in(str(folder)) == [str(folder / name) for name in names]
    (folder / "collapse-right.json").unlink()
    assert logs_in(str(folder)) == [str(folder)]


def test_a_folder_of_checkpoints_is_one_run(tmp_path):
    for step in (10, 20):
        written(tmp_path, f"checkpoint-{step}/trainer_state.json", "{}")
    assert logs_in(str(tmp_path)) == [str(tmp_path)]


def test_what_differs_is_told_and_what_does_not_is_not(folder):
    told = " ".join(diagnose_several(logs_in(str(folder))).differs)
    assert "H43 behaviour-collapse only in collapse-right.json." in told
    assert "`max_steps`: 40 in collapse-right.json, 60 in grpo-lora.json." in told
    assert "tokens of a completion" in told
    assert "The reward:" not in told, "it rises in both"


def test_the_exit_code_is_of_the_worst_and_json_has_every_report(folder):
    found = run(folder, "--json")
    assert found.exit_code == 1
    shape = json.loads(found.output)
    assert [len(one["findings"]) > 0 for one in shape["runs"]] == [True, True]
    assert shape["differs"]
    sound = folder / "grpo-lora.json"
    assert run(sound, sound).exit_code == 0


def test_a_column_without_any_number_is_not_compared(tmp_path, recwarn):
    for name, kl in (("a", float("nan")), ("b", 0.1), ("c", 0.5)):
        rows = [{"step": step, "reward": 0.5, "kl": kl} for step in range(1, 13)]
        written(tmp_path, f"{name}.json", json.dumps({"log_history": rows}))
    told = [one for one in diagnose_several(logs_in(str(tmp_path))).differs if "KL" in one]
    assert told == ["The KL, last third: 0.1 in b.json, 0.5 in c.json."]
    assert not [one for one in recwarn if "empty slice" in str(one.message)]


@pytest.mark.parametrize(("second", "neither"), [(0.5, True), (0.6, False)])
def test_a_chart_of_two_runs_is_two_runs_of_which_one_is_better_where_it_surely_is(
    tmp_path, second, neither
):
    noise = np.random.default_rng(5).normal(size=(100, 2)) * 0.02 + [0.5, second]
    rows = [f"{at},{a},{b}" for at, (a, b) in enumerate(noise, 1)]
    path = written(
        tmp_path, "c.csv", "\n".join(["Step,s1 - train/reward,s2 - train/reward", *rows])
    )
    assert "FILE#RUN" in refusal(path)
    assert logs_in(str(path)) == [f"{path}#s1", f"{path}#s2"]
    told = next(one for one in diagnose_several(logs_in(str(path))).differs if "minus that" in one)
    assert ("neither" in told) is neither


def test_what_is_no_log_is_left_out_and_nothing_but_these_is_an_error(folder, tmp_path_factory):
    written(folder, "notes.json", '{"a": 1}')
    found = run(folder)
    assert "Left out:" in found.output
    assert "notes.json" in found.output.replace("\n", "")
    nothing = tmp_path_factory.mktemp("nothing")
    for name in ("a.json", "b.json"):
        written(nothing, name, '{"a": 1}')
    assert run(nothing).exit_code == 2


def test_options_about_one_run_are_refused(folder):
    assert run(folder, "--junit", folder / "out.xml").exit_code == 2
