"""The figures of docs/benchmark.md are those of the results that are kept."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.plan import full_plan
from flatline.cli import app
from flatline.faults import FAULTS
from tests.front_door import RESULTS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
SHORT = PAGE.split("## In short")[1].split("\n## ")[0]
IN_SHORT = ("one answer", "checkup", "diagnose 40", "either")
LARGE_RUNS = ("docs/benchmark/large-runs.json", "docs/benchmark/large-runs-experts.json")


def report(*options, of=RESULTS):
    return CliRunner().invoke(app, ["bench", "report", str(ROOT / of), *options]).stdout


def counted(share):
    return f"{share['count']} of {share['of']}"


@pytest.fixture(scope="module")
def figures():
    return json.loads(report("--json"))


@pytest.fixture(scope="module")
def first(figures):
    """How many have their fault first, by the runs that are counted."""
    rows = [row for row in figures["accuracy"] if row["top"] == 1 and not row["alike"]]
    return {
        row["set"]: {look: counted(one) for look, one in row["by_look"].items()} for row in rows
    }


def test_every_fault_newer_than_the_results_was_run_as_a_fault_of_large_runs(figures):
    counted_before = {row["fault"] for row in figures["faults"]}
    newer = {fault.name for fault in FAULTS} - counted_before
    run = [row for kept in LARGE_RUNS for row in json.loads(report("--json", of=kept))["faults"]]
    assert {row["fault"] for row in run} == newer


def test_it_says_how_many_of_the_planned_cells_are_counted():
    kept = json.loads((ROOT / RESULTS).read_text(encoding="utf-8"))["cells"]
    planned = {cell.name for cell in full_plan()}
    run = planned & {one["cell"]["name"] for one in kept}
    text = " ".join(SHORT.split())
    assert f"plans {len(planned)}, of which {len(run)} were run and are counted here" in text
    assert f"the other {len(planned) - len(run)} belong to" in text


def test_it_begins_with_the_rows_of_the_kept_results(first):
    rows = [
        f"| {name} | {' | '.join(counts[look] for look in IN_SHORT)} |"
        for name, counts in first.items()
        if name != "all that hurt, not corrected"
    ]
    assert rows and not [row for row in rows if row not in SHORT]


def test_it_compares_with_other_tools_as_the_kept_results_do(figures):
    tools = figures["peers"]["tools"].values()
    for key, words in (
        ("false_alarms", "healthy setups with an alarm"),
        ("noticed", "faults that hurt: an alarm"),
        ("cause", "faults that hurt: points at the cause"),
    ):
        assert f"| {words} | {' | '.join(counted(one[key]) for one in tools)} |" in SHORT


def test_it_says_how_many_faults_hurt_and_how_many_pairs_are_named(figures):
    hurting = [row for row in figures["faults"] if row["verdict"] == "hurts"]
    usual = [row for row in hurting if row["task"] == "musique" and ":" not in row["fault"]]
    text = " ".join(SHORT.split())
    assert f"({len(hurting)} of {len(figures['faults'])}; of the 62 faults" in text
    assert f"on MuSiQue with three seeds, {len(usual)})" in text
    pairs = figures["pairs"]["by_look"]["one answer"]
    assert f"among the first four of the one answer in {counted(pairs)}." in text


def test_the_headline_is_the_single_answer_about_faults_that_hurt_and_about_all(first):
    for name in ("all that hurt", "all planted, harmless ones too"):
        assert f"**{first[name]['one answer']}**" in SHORT
