"""The figures of docs/benchmark.md are those of the results that are kept."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatline.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
SHORT = PAGE.split("## In short")[1].split("## What a cell is")[0]
RESULTS = "docs/benchmark/results.json"
BEGIN, END = f"<!-- begin: flatline bench report {RESULTS} -->\n", "\n<!-- end -->"
IN_SHORT = ("one answer", "checkup", "diagnose 40", "either")


LARGE_RUNS = "docs/benchmark/large-runs.json"


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


def test_the_page_shows_what_the_kept_results_give():
    shown = PAGE.split(BEGIN)[1].split(END)[0]
    assert shown.strip() == report().strip(), (
        f"Type `flatline bench report {RESULTS}` and put it between the marks"
    )


def test_faults_of_large_runs_cost_what_their_kept_results_say():
    faults = [line for line in report(of=LARGE_RUNS).splitlines() if "256 problems" in line]
    told = ["|".join(line.split("|")[:4]) for line in faults if line.startswith("| ")]
    assert told and not [row for row in told if row not in PAGE]


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
