"""The page of a journal: the board, its files, and what cannot be read."""

import pytest

from flatline.config import RunConfig
from flatline.journal import Journal, frontmatter, record
from flatline.journal.template import begin
from flatline.report import page_of
from flatline.report.journal_answer import Answer, answer_of
from flatline.report.journal_page import LONGEST_FILE
from tests.journals import plan_of, result_of, verdict_of
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


def test_of_an_endless_log_the_newest_part_is_kept(journal):
    log = journal / "01-experiments-log.md"
    log.write_text("The oldest.\n\n" + "again and again\n\n" * 30_000 + "The newest.\n")
    html = page_of(journal)
    assert "The newest." in html and "The oldest." not in html
    assert "characters are left out" in html
    assert len(html) < 3 * LONGEST_FILE


def answer(path) -> Answer:
    journal = Journal.open(path)
    return answer_of(journal, journal.read())


def codes(found: Answer) -> dict[str, list[str]]:
    return {label: [one.entry.code for one in items] for label, items in found.lines}


def set_status(journal, code: str, status: str) -> None:
    file = file_of(journal, code)
    file.write_text(frontmatter.changed(file.read_text(), {"status": status}, file))


def test_a_journal_opens_with_the_cause_its_effect_and_what_is_excluded(journal):
    record(Journal.open(journal), plan_of(), result_of(), verdict_of())
    excluded = verdict_of("invalidated", "H01")
    record(Journal.open(journal), plan_of("h01-scale", "H01"), result_of(), excluded)
    found = answer(journal)
    assert codes(found)["Validated"] == ["H09"] and codes(found)["Ruled out"] == ["H01"]
    (cause,) = dict(found.lines)["Validated"]
    assert cause.effect == {"value": 0.3, "low": 0.25, "high": 0.35} and cause.seeds == 3
    assert "H09" in found.headline and "flatline journal resolve" in found.next
    text = Page(page_of(journal)).text
    assert text.index("[+0.250, +0.350]") < text.index("The board")


def test_a_failed_positive_control_is_no_cause(journal):
    set_status(journal, "H00", "validated")
    found = answer(journal)
    assert "Validated" not in codes(found) and found.level == "unknown"
    assert [one.said for one in dict(found.lines)["Control"]] == ["a rung failed"]


def test_a_status_that_was_set_by_hand_has_no_effect_made_up_for_it(journal):
    set_status(journal, "H09", "validated")
    (cause,) = dict(answer(journal).lines)["Validated"]
    assert cause.effect is None and "no experiment" in cause.said
    page_of(journal)
