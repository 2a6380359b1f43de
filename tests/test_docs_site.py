"""The site leads somewhere: its pages exist, and what they tell people to type does too."""

import re
from pathlib import Path

import pytest
import typer
import yaml

from flatline.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "getting-started").glob("*.md"))]


def named(nav):
    for entry in nav:
        inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from named(inner) if isinstance(inner, list) else [inner]


def test_every_page_of_the_navigation_exists():
    pages = set(named(SITE["nav"]))
    assert len(pages) > 15
    assert [page for page in sorted(pages) if not (DOCS / page).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_that_a_page_links_exists_in_the_repository_too(page):
    linked = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [name for name in linked if not (page.parent / name).is_file()] == []


def test_nothing_says_to_install_by_a_name_that_is_another_projects():
    texts = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    wrong = re.compile(r"pip install [\"']?flatline")
    assert [file.name for file in texts if wrong.search(file.read_text())] == []


def flags_of(command):
    for one in typer.main.get_command(app).commands[command].params:
        if one.param_type_name == "option":
            said, _, default = one.help.replace("\\[", "[").partition(" [default: ")
            names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
            yield f"| {names} | {default.removesuffix(']')} | {' '.join(said.split())} |"


def test_the_table_of_flags_is_what_the_command_takes():
    page = (DOCS / "training.md").read_text()
    table = page.split("| flag | default | what |\n|---|---|---|\n")[1].split("\n\n")[0]
    flags = "\n".join(flags_of("train"))
    assert table.strip() == flags, f"paste into docs/the-lab.md:\n{flags}"


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
