"""The page of a journal: the board, its files, and what cannot be read."""

import pytest

from flatline.config import RunConfig
from flatline.journal.template import begin
from flatline.report import page_of
from flatline.report.journal_page import LONGEST_FILE
from tests.report_pages import HOSTILE, Page


@pytest.fixture
def journal(tmp_path):
    begin(tmp_path / "journal", RunConfig(task="musique"))
    return tmp_path / "journal"


def file_of(journal, code: str):
    return next((journal / "hypotheses").glob(f"{code.lower()}-*.md"))


def test_the_board_lists_every_hypothesis_and_links_to_its_file(journal):
    page = Page(page_of(journal))
    files = sorted((journal / "hypotheses").glob("*.md"))
    assert f"{len(files)} hypotheses" in page.text
    ids = {attrs.get("id") for attrs in page.all("details")}
    links = {attrs["href"][1:] for attrs in page.all("a") if attrs.get("href")}
    assert len({link for link in links if link.startswith("file-hypotheses-")}) == len(files)
    assert {link for link in links if link.startswith("file-")} <= ids


def test_roadmap_and_log_are_on_the_page(journal):
    with (journal / "01-experiments-log.md").open("a") as log:
        log.write("\n## A day\n\nSomething was tried.\n")
    page = Page(page_of(journal))
    assert "Roadmap" in page.text
    assert "Something was tried." in page.text


def test_a_file_with_broken_front_matter_is_named_and_the_others_are_shown(journal):
    file_of(journal, "H03").write_text("---\ncode: [\n---\nText stays.\n")
    page = Page(page_of(journal))
    assert f"{file_of(journal, 'H03').name} cannot be read" in page.text
    assert "H01" in page.text and "Text stays." in page.text


def test_hostile_text_in_a_journal_does_nothing(journal):
    for file in [file_of(journal, "H01"), journal / "README.md"]:
        file.write_text(file.read_text() + f"\n\n{HOSTILE}\n\n<script>alert(1)</script>\n")
    (journal / "experimental-results" / "x.json").write_text('{"verdict": {"effect": "<img>"}}')
    html = page_of(journal)
    page = Page(html)
    assert page.scripts == 1 and not page.all("img")
    assert "\u202e" not in html and "\x1b" not in html
    assert "<script>alert(1)</script>" in page.text


def test_a_result_that_cannot_be_read_has_a_row_that_says_so(journal):
    (journal / "experimental-results" / "h09-x.json").write_text("{")
    text = Page(page_of(journal)).text
    assert "cannot be read" in text[text.index("h09-x") :][:60]


def test_of_an_endless_log_the_newest_part_is_kept(journal):
    log = journal / "01-experiments-log.md"
    log.write_text("The oldest.\n\n" + "again and again\n\n" * 30_000 + "The newest.\n")
    html = page_of(journal)
    assert "The newest." in html and "The oldest." not in html
    assert "characters are left out" in html
    assert len(html) < 3 * LONGEST_FILE


def test_a_journal_without_readme_has_a_page(journal):
    (journal / "README.md").unlink()
    assert "The board" in Page(page_of(journal)).text
