"""The front pages say what is so, and the README stays a front door."""

import re

import pytest

from flatline.cli import app
from tests.front_door import PAGES, ROOT, blocks_of

README = (ROOT / "README.md").read_text()
LONGEST = 150
"""Lines. What does not fit belongs into docs."""


@pytest.mark.parametrize("page, block", [(page, one) for page in PAGES for one in PAGES[page]])
def test_what_code_or_kept_results_decide_is_what_the_page_says(page, block):
    shown = blocks_of((ROOT / page).read_text())
    assert shown.keys() == PAGES[page].keys()
    assert shown[block] == PAGES[page][block](), "type `python -m tests.front_door --write`"


def test_it_can_be_read_in_a_minute_or_two():
    read = [line for line in README.splitlines() if not line.startswith("<!--")]
    assert len(read) <= LONGEST


def test_every_command_it_names_exists():
    known = {command.callback.__name__ for command in app.registered_commands}
    known |= {group.typer_instance.info.name for group in app.registered_groups}
    typed = "".join(re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL))
    named = set(re.findall(r"^flatline ([a-z]+)", typed, flags=re.MULTILINE))
    assert named and named <= known


def test_every_page_and_picture_it_links_exists():
    linked = re.findall(r"\]\((docs/[^)#]+)(?:#[^)]*)?\)", README)
    assert linked and all((ROOT / page).is_file() for page in linked)


def test_everything_in_its_tree_exists():
    tree = README.split("## Where things are")[1]
    names = re.findall(r"(?<![\w/])([\w/]+(?:\.py|\.md|/))(?=[\s;:,])", tree)
    places = (ROOT, ROOT / "src" / "flatline", ROOT / "src" / "flatline" / "hypotheses")
    assert len(names) > 20
    assert [n for n in names if not any((place / n).exists() for place in places)] == []


def test_its_test_command_is_what_the_gate_runs():
    typed = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    assert any(re.search(r"^make test\b", block, flags=re.MULTILINE) for block in typed)
    assert any(re.search(r"^make demo\b", block, flags=re.MULTILINE) for block in typed)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("\nmake test")
