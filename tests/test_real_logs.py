"""Real logs of other people's runs: only what their numbers carry, and a collapse by its name.

The figures are those of docs/log-readings.md, to four digits (`benchmarks/real_logs.py --compact`).
"""

import json
from pathlib import Path

import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import Report, diagnose
from flatline.hypotheses.base import Level
from flatline.trace.importers import open_log

FIGURES = json.loads((Path(__file__).parent / "fixtures" / "real_logs.json").read_text())
CLIMBING = (
    "IMJONEZZ_UnslothGRPO__ckpt250.json",
    "aaravarora01__strict_stage1.jsonl",
    "qhy991__8B_R16_0615_ckpt310.json",
)
ALARMS = {
    "OmSPatel20_FinReason__grpo_training_log.json": ["H03"],
    "Rusheel86_ChaosEconomy__training_logs.json": ["H04"],
    "aaravgupta0202_legaloom__training_log.json": ["H43"],
    "alexchilton__threestage_stage2_ckpt160.json": ["H03"],
    "qhy991__mp_LR2e-5_R64_ckpt280.json": ["H43"],
}


def reading(tmp_path: Path, name: str) -> Report:
    kept = FIGURES[name]
    columns = kept["columns"]
    rows = [
        {column: value for column, value in zip(columns, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"logging_steps": kept["logging_steps"], "log_history": rows}))
    return diagnose(open_log(path))


@pytest.mark.parametrize("name", CLIMBING)
def test_a_run_that_climbs_is_not_called_faulty(tmp_path, name):
    report = reading(tmp_path, name)
    assert report.trend.text.startswith("The training reward rises")
    assert report.outcome is Outcome.HEALTHY


@pytest.mark.parametrize("name", ALARMS)
def test_a_run_that_does_not_climb_is_read_for_what_its_numbers_show(tmp_path, name):
    report = reading(tmp_path, name)
    assert not report.trend.text.startswith("The training reward rises")
    assert [alarm.hypothesis for alarm in report.alarms] == ALARMS[name]
    assert all(alarm.level is Level.SUSPECT for alarm in report.alarms), "a log proves nothing"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("qhy991__mp_LR2e-5_R64_ckpt280.json", "collapses into text without end"),
        ("aaravgupta0202_legaloom__training_log.json", "collapses into one answer"),
    ],
)
def test_a_collapse_is_named_a_collapse(tmp_path, name, what):
    assert what in reading(tmp_path, name).summary


@pytest.mark.parametrize("name", FIGURES)
def test_a_setting_that_a_log_does_not_name_rules_nothing_out(tmp_path, name):
    levels = {one.hypothesis: one.level for one in reading(tmp_path, name).findings}
    assert {levels[code] for code in ("H18", "H23", "H31", "H37")} == {Level.UNKNOWN}


def test_rows_that_are_means_of_several_steps_are_not_called_steps(tmp_path):
    report = reading(tmp_path, "qhy991__8B_R16_0615_ckpt310.json")
    assert "over 155 rows 2 steps apart" in report.trend.text
    slow = reading(tmp_path, "OmSPatel20_FinReason__grpo_training_log.json")
    assert "245 steps" in next(f.text for f in slow.findings if f.hypothesis == "H24")


def test_a_policy_that_is_far_from_its_reference_at_the_start_has_not_shown_that_it_moves(tmp_path):
    report = reading(tmp_path, "alexchilton__threestage_stage2_ckpt160.json")
    rate = next(f for f in report.findings if f.hypothesis == "H24")
    assert rate.level is Level.UNKNOWN
    assert "1.1 per token from the start" in rate.text
