"""Packed results give the tables of the cells that they were made of."""

import json

import pytest
from typer.testing import CliRunner

from bench.pack import pack
from bench.results import read_all
from bench.score import score
from flatline.cli import app
from flatline.errors import ConfigError

LOOK = {
    "levels": ["suspect"],
    "causes": ["H03"],
    "ranking": [{"explains": ["H24"], "proven": False, "severity": 2.0}],
    "unknown": [f"H{n}" for n in range(10, 30)],
    "asked": 40,
    "defects": [],
    "seconds": 10.0,
}


def write_cell(folder, name, kind, *, fault=None, after=0.9, look=None):
    path = folder / "cells" / name
    path.mkdir(parents=True)
    found = look or {**LOOK, "alarms": ["H03"], "texts": [f"words about {name}"]}
    facts = {
        "version": 1,
        "cell": {
            "name": name,
            "kind": kind,
            "changes": {"seed": 0, "max_steps": 40} | ({"fault": fault} if fault else {}),
            "planted": [fault] if fault else [],
            "wanted": ["H03"] if fault else [],
            "first": ["H03"] if fault else [],
        },
        "checkup": found,
        "training": {"steps": 40},
        "heldout": {
            "problems": [f"problem {n}" for n in range(20)],
            "before": [0.5] * 20,
            "after": [after] * 20,
            "gain": {"value": after - 0.5, "low": 0.1, "high": 0.9, "n": 20},
        },
        "diagnose": {"40": found},
        "ablation": {},
        "seconds_until": {"40": 100.0},
        "versions": {"torch": "2"},
    }
    (path / "cell.json").write_text(json.dumps(facts))
    return path


@pytest.fixture
def cells(tmp_path):
    write_cell(tmp_path, "healthy-s0", "reference")
    write_cell(tmp_path, "kl-sign-s0", "fault", fault="kl-sign", after=0.2)
    return tmp_path


def test_the_figures_are_those_of_the_folder(cells):
    file = cells / "results.json"
    assert pack(cells, file) == 2
    assert score(read_all(file)) == score(read_all(cells))


def test_the_command_packs_and_the_report_reads_it(cells):
    runner, file = CliRunner(), str(cells / "results.json")
    assert runner.invoke(app, ["bench", "pack", str(cells), file]).exit_code == 0
    shown = runner.invoke(app, ["bench", "report", file])
    assert "| kl-sign | H03 |" in shown.stdout


def test_nothing_to_pack_says_what_to_type(tmp_path):
    with pytest.raises(ConfigError, match="flatline bench --out"):
        pack(tmp_path, tmp_path / "results.json")


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "lists": []}'])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="holds no packed cells") as caught:
        read_all(file)
    assert "Error" not in str(caught.value)
