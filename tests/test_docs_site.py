"""The site leads somewhere: its pages exist, and what they tell people to type does too."""

import re
from pathlib import Path

import pytest
import yaml

from flatline.cli import app
from flatline.config import RunConfig
from flatline.hypotheses import HYPOTHESES
from flatline.trace.importers.aliases import COLUMNS
from tests import site

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = sorted(DOCS.glob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")]
MOST_PAGES, MOST_WORDS, MOST_NOTES = 30, 32_000, 10
MOST_OF_A_RECORD = 800
"""Words of a page whose full record lies in evidence/records."""
RECORDED = ("benchmark", "log-readings", "museum", "mutants", "strangers")


def named(nav):
    for entry in nav:
        inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from named(inner) if isinstance(inner, list) else [inner]


def words(pages):
    return sum(len(page.read_text().split()) for page in pages)


def test_there_is_no_more_to_read_than_somebody_reads():
    assert len([*PAGES, *FRONT]) <= MOST_PAGES
    assert words([*FRONT, *DOCS.rglob("*.md")]) <= MOST_WORDS
    assert len([*(DOCS / "design").glob("*.md")]) <= MOST_NOTES
    assert (ROOT / "CHANGELOG.md").stat().st_size <= 6_000


@pytest.mark.parametrize("page", RECORDED)
def test_a_page_of_a_measurement_is_short(page):
    assert words([DOCS / f"{page}.md"]) <= MOST_OF_A_RECORD


def test_every_page_of_the_navigation_exists_and_every_page_is_in_it():
    assert set(named(SITE["nav"])) == {page.name for page in PAGES}


@pytest.mark.parametrize(
    "page", [*PAGES, *(DOCS / "design").glob("*.md")], ids=lambda page: page.name
)
def test_every_page_that_a_page_links_exists_in_the_repository_too(page):
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [name for name in linked if not (page.parent / name).is_file()] == []


def test_every_page_that_the_code_names_exists():
    code = [
        file
        for folder in ("src", "museum", "bench", "benchmarks", "tests")
        for file in (ROOT / folder).rglob("*.py")
    ]
    told = {name for file in code for name in re.findall(r"docs/[\w/-]+\.md", file.read_text())}
    assert len(told) > 10
    assert [name for name in sorted(told) if not (ROOT / name).is_file()] == []


def test_nothing_says_to_install_by_a_name_that_is_another_projects():
    texts = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    wrong = re.compile(r"pip install [\"']?flatline")
    assert [file.name for file in texts if wrong.search(file.read_text())] == []


def test_every_page_that_the_site_adds_to_is_one_of_its_pages():
    assert set(site.MADE) <= {page.name for page in PAGES}


def test_the_site_lists_every_hypothesis_with_its_manual():
    made = site.hypotheses()
    assert [one.id for one in HYPOTHESES if f"## {one.id} {one.name}\n" not in made] == []
    assert [one.id for one in HYPOTHESES if f"| {one.id} | `{one.name}` |" not in made] == []
    assert "hypotheses.md#h09-loss-mask-as-attention" in site.symptoms()


def test_the_site_lists_every_flag_and_every_name_of_a_column():
    flags = site.flags()
    assert [one for one in RunConfig.__slots__ if f"--{one.replace('_', '-')}" not in flags] in (
        [],
        ["task"],
    )
    assert [column for column in COLUMNS if f"| `{column}` |" not in site.names()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_benchmarks_that_a_page_names_exist(page):
    text = page.read_text()
    known = {command.callback.__name__ for command in app.registered_commands}
    known |= {group.typer_instance.info.name for group in app.registered_groups}
    typed = "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    commands = set(re.findall(r"^flatline ([a-z]+)", typed, flags=re.MULTILINE))
    assert commands <= known, page
    scripts = set(re.findall(r"benchmarks/[\w/]+\.py", text))
    assert [name for name in sorted(scripts) if not (ROOT / name).is_file()] == []
