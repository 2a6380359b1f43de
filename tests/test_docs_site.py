"""The site leads somewhere: its pages exist, and what they tell people to type does too."""

import re
from pathlib import Path

import pytest
import yaml

from flatline.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
GENERATED = {"hypotheses.md"}
PAGES = [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "getting-started").glob("*.md"))]


def named(nav):
    for entry in nav:
        inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from named(inner) if isinstance(inner, list) else [inner]


def test_every_page_of_the_navigation_exists():
    pages = set(named(SITE["nav"])) - GENERATED
    assert len(pages) > 15
    assert [page for page in sorted(pages) if not (DOCS / page).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_benchmarks_that_a_page_names_exist(page):
    text = page.read_text()
    known = {command.callback.__name__ for command in app.registered_commands}
    known |= {group.typer_instance.info.name for group in app.registered_groups}
    typed = "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    commands = set(re.findall(r"^flatline ([a-z]+)", typed, flags=re.MULTILINE))
    assert commands <= known, page
    scripts = set(re.findall(r"benchmarks/\w+\.py", text))
    assert [name for name in sorted(scripts) if not (ROOT / name).is_file()] == []
