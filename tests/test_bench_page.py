"""The tables of docs/benchmark.md are those of the results that are kept beside it."""

from pathlib import Path

from typer.testing import CliRunner

from flatline.cli import app

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = "docs/benchmark/results.json"
BEGIN, END = f"<!-- begin: flatline bench report {RESULTS} -->\n", "\n<!-- end -->"


def test_the_page_shows_what_the_kept_results_give():
    page = (DOCS / "benchmark.md").read_text(encoding="utf-8")
    shown = page.split(BEGIN)[1].split(END)[0]
    made = CliRunner().invoke(app, ["bench", "report", str(DOCS.parent / RESULTS)]).stdout
    assert shown.strip() == made.strip(), (
        f"Type `flatline bench report {RESULTS}` and put it between the marks"
    )
