"""The figures of docs/benchmark.md are those of the results that are kept."""

import json
from pathlib import Path

from typer.testing import CliRunner

from flatline.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
SHORT = PAGE.split("## In short")[1].split("## What a cell is")[0]
RESULTS = "docs/benchmark/results.json"
BEGIN, END = f"<!-- begin: flatline bench report {RESULTS} -->\n", "\n<!-- end -->"


def report(*options):
    return CliRunner().invoke(app, ["bench", "report", str(ROOT / RESULTS), *options]).stdout


def test_the_page_shows_what_the_kept_results_give():
    shown = PAGE.split(BEGIN)[1].split(END)[0]
    assert shown.strip() == report().strip(), (
        f"Type `flatline bench report {RESULTS}` and put it between the marks"
    )


def test_the_headline_is_the_single_answer_about_faults_that_hurt_and_about_all():
    rows = json.loads(report("--json"))["accuracy"]
    named = {
        row["set"]: row["by_look"]["one answer"]
        for row in rows
        if row["top"] == 1 and not row["alike"]
    }
    for name in ("all that hurt", "all planted, harmless ones too"):
        assert f"**{named[name]['count']} of {named[name]['of']}**" in SHORT
