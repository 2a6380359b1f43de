"""The figures of docs/benchmark.md and of the README are those of the results that are kept."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatline.bench.results import read_all
from flatline.bench.score import score
from flatline.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = "docs/benchmark/results.json"
BEGIN, END = f"<!-- begin: flatline bench report {RESULTS} -->\n", "\n<!-- end -->"
IN_README = ("one answer", "checkup", "diagnose 40", "either")


@pytest.fixture(scope="module")
def first():
    """How many have their fault first, by the runs that are counted."""
    figures = score(read_all(ROOT / RESULTS))
    rows = [row for row in figures["accuracy"] if row["top"] == 1 and not row["alike"]]
    return {
        row["set"]: {look: f"{one['count']} of {one['of']}" for look, one in row["by_look"].items()}
        for row in rows
    }


def test_the_page_shows_what_the_kept_results_give():
    shown = PAGE.split(BEGIN)[1].split(END)[0]
    made = CliRunner().invoke(app, ["bench", "report", str(ROOT / RESULTS)]).stdout
    assert shown.strip() == made.strip(), (
        f"Type `flatline bench report {RESULTS}` and put it between the marks"
    )


def test_the_readme_has_the_rows_of_the_kept_results(first):
    rows = [
        f"| {name} | {' | '.join(counts[look] for look in IN_README)} |"
        for name, counts in first.items()
        if name != "all that hurt, not corrected"
    ]
    assert rows and not [row for row in rows if row not in README]


@pytest.mark.parametrize("text", [PAGE, README], ids=["page", "README"])
def test_the_headline_is_the_single_answer_about_faults_that_hurt_and_about_all(text, first):
    for name in ("all that hurt", "all planted, harmless ones too"):
        assert f"**{first[name]['one answer']}**" in text
