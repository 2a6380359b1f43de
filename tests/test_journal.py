"""A journal begins from the seeds' template; status and next read it."""

import re
from dataclasses import replace

import pytest

from flatline.config import RunConfig, load_config
from flatline.errors import ConfigError
from flatline.hypotheses import HYPOTHESES
from flatline.journal import begin, board, update_status
from flatline.journal.check import check
from flatline.journal.new import add
from flatline.journal.roadmap import plan
from tests.journals import everything, journal_at


@pytest.fixture
def journal(tmp_path):
    return journal_at(tmp_path)


def set_front_matter(journal, code, **values):
    file = journal.find(code).file
    text = file.read_text()
    for key, value in values.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{key}:"))
        text = text.replace(line, f"{key}: {value}", 1)
    file.write_text(text)


def queue(journal):
    return [step.entry.code for step in plan(journal).steps]


def test_a_journal_begins_with_the_seeds_hypotheses_in_their_order(journal):
    entries = {entry.code: entry for entry in journal.read().entries}
    assert list(entries) == [f"H{i:02}" for i in range(10)]
    assert queue(journal)[:4] == ["H00", "H06", "H01", "H02"]
    low, medium = ([c for c, e in entries.items() if e.priority == p] for p in ("low", "medium"))
    assert (low, medium) == (["H05"], ["H03", "H04", "H08"])


SEEN_ELSEWHERE = (
    r"\d\s?%",
    r"\d{4}-\d{2}",
    r"\b\d*e[1-9]",
    r"n ?= ?\d",
    r"times in ten",
    r"worked investigation|decent level|given the baseline|was once|raised by|ended where",
)
"""Figures, dates, and the turns of phrase in which a template told what had been seen."""


def test_a_fresh_journal_tells_no_result_of_another_investigation(tmp_path, journal):
    told = {
        (file.name, found[0])
        for file in sorted(tmp_path.rglob("*.md"))
        for one in SEEN_ELSEWHERE
        for found in re.finditer(one, file.read_text(), re.IGNORECASE)
    }
    assert not told
    assert all(not entry.experiments for entry in journal.read().entries)


def test_the_setup_can_be_trained_from(tmp_path):
    asked = RunConfig(task="gsm8k", fault="kl-sign", learning_rate=1e-5, bf16=True, model='a"b\\é')
    begin(tmp_path, replace(asked, output_dir="/somewhere/else", seed=7))
    assert load_config(tmp_path / "setup.toml") == asked


def test_what_exists_is_never_overwritten(tmp_path, journal):
    (tmp_path / "README.md").write_text("<!-- flatline:status -->\n<!-- /flatline:status -->\nmine")
    (tmp_path / "setup.toml").write_text('task = "toolmath"\n')
    journal.find("H03").file.rename(tmp_path / "hypotheses" / "kl.md")
    journal.find("H04").file.unlink()
    begun = begin(tmp_path, RunConfig())
    assert begun.written == ["hypotheses/h04-context-truncation.md"]
    assert (tmp_path / "README.md").read_text().endswith("\nmine")
    assert [e.code for e in journal.read().entries].count("H03") == 1


def test_every_known_hypothesis_can_be_added(tmp_path):
    journal = journal_at(tmp_path / "a b")
    assert check(journal) == []
    there = {entry.code for entry in journal.read().entries}
    for one in HYPOTHESES:
        if one.id not in there:
            add(journal, one.name)
    assert {entry.code for entry in journal.read().entries} == {one.id for one in HYPOTHESES}
    assert check(journal) == []


def test_own_hypotheses_get_the_next_free_code(journal):
    first = add(journal, "The judge is moody | <b>")
    second = add(journal, "///")
    assert (first.name, second.name) == ("u01-the-judge-is-moody-b.md", "u02-untitled.md")
    assert journal.find("U01").title == "The judge is moody | <b>"
    assert check(journal) == []


@pytest.mark.parametrize("what", ["H03", "H98", "U01", "", " \n"])
def test_what_cannot_be_added_is_refused(tmp_path, what, journal):
    before = everything(tmp_path)
    with pytest.raises(ConfigError):
        add(journal, what)
    assert everything(tmp_path) == before


def test_the_table_shows_both_files_of_a_code_and_says_so(journal):
    file = journal.find("H06").file
    (file.parent / "h06-library-validation.md").write_bytes(file.read_bytes())
    shape = board.to_json(board.refresh(journal))
    assert shape["duplicates"] == ["H06"]
    notes = [one["note"] for one in shape["hypotheses"] if one["code"] == "H06"]
    assert len(notes) == 2 and all("two files" in note for note in notes)
    with pytest.raises(ConfigError, match="more than once"):
        journal.find("H06")


def test_one_broken_file_does_not_hide_the_others(tmp_path, journal):
    journal.find("H03").file.write_text("---\ncode: H03\nstatus: :\n---\n")
    reading = board.refresh(journal)
    assert len(reading.entries) == 9 and len(reading.broken) == 1
    assert "h03-kl-divergence.md | ? |" in (tmp_path / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"h03-kl-divergence\.md:3: "):
        reading.insist()


def test_refreshing_the_table_keeps_every_other_byte_of_the_readme(tmp_path, journal):
    file = tmp_path / "README.md"
    file.write_bytes(file.read_bytes() + b"\xe2\x9c\x85 mine, \tno newline   ")
    before = file.read_bytes()
    board.refresh(journal)
    assert file.read_bytes() == before
    update_status(journal, "H03", "testing")
    assert file.read_bytes() == before.replace(
        "| MED | ⏳ Pending | - | Complete H01 first".encode(),
        "| MED | 🧪 Testing | - | Complete H01 first".encode(),
    ).replace(
        "h03-kl-divergence.md), up to 15 minutes. ⏳ Pending".encode(),
        "h03-kl-divergence.md), up to 15 minutes. 🧪 Testing".encode(),
    )


def test_a_readme_without_markers_is_left_alone(tmp_path, journal):
    (tmp_path / "README.md").write_text("all mine\n")
    with pytest.raises(ConfigError, match="no place for the status table"):
        board.refresh(journal)
    assert (tmp_path / "README.md").read_text() == "all mine\n"


def test_a_file_that_is_not_utf8_is_refused_and_kept(tmp_path, journal):
    (tmp_path / "README.md").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        board.refresh(journal)
    assert (tmp_path / "README.md").read_bytes() == b"caf\xe9"


def test_a_validated_cause_sends_what_it_explains_to_the_end(journal):
    set_front_matter(journal, "H09", status="validated")
    roadmap = plan(journal)
    assert {"H01", "H03", "H06", "H07"} < set(queue(journal)[4:])
    assert queue(journal)[0] != "H00" or "trusted" not in roadmap.steps[0].reasons[0]
    last = next(step for step in roadmap.steps if step.entry.code == "H06")
    assert last.reasons[0].startswith("H09 is validated and would produce its signs")
    assert "H09 is validated: apply what fixes/ says" in roadmap.advice


def test_a_partial_verdict_raises_what_would_explain_it(journal):
    set_front_matter(journal, "H03", status="partial")
    assert queue(journal)[:4] == ["H00", "H06", "H02", "H09"]
    step = plan(journal).steps[3]
    assert step.reasons[0] == "H03 is partial, real but not the cause; this would explain it."


def test_the_positive_control_goes_first_and_its_failure_raises_what_it_needs(journal):
    set_front_matter(journal, "H00", priority="low", status="inconclusive")
    assert queue(journal)[0] == "H00"
    set_front_matter(journal, "H00", status="validated")
    assert set(queue(journal)[:3]) == {"H06", "H02", "H09"}
    assert "positive control failed" in plan(journal).steps[0].reasons[0]
