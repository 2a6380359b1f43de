"""What does not hold together is found, and what does is left in peace."""

import json
from pathlib import Path

import pytest

from flatline.journal import Journal, record
from flatline.journal.check import check
from tests.journals import journal_at, plan_of, result_of, verdict_of


@pytest.fixture
def journal(tmp_path):
    return journal_at(tmp_path)


def kinds(journal):
    return [(problem.kind, problem.file) for problem in check(journal)]


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def judged(path, ruling="invalidated", *, plan=None, **more):
    journal = journal_at(path)
    record(journal, plan or plan_of(), result_of(), verdict_of(ruling, **more), None)
    return journal


H03, H09 = "hypotheses/h03-kl-divergence.md", "hypotheses/h09-loss-mask-as-attention.md"


def test_the_example_journal_holds_together():
    example = Path(__file__).parents[1] / "examples" / "journal"
    assert check(Journal.open(example)) == []


def test_a_link_to_nowhere_is_found_with_its_line(tmp_path, journal):
    file = tmp_path / "00-problem-statement.md"
    lines = file.read_text().count("\n")
    with file.open("a") as text:
        text.write("[a](gone.md) [b](https://x.y/z) [c](#here) [d](README.md#status)\n")
        text.write("```\n[in a block](gone.md)\n```\n`[in code](gone.md)` [e](hypotheses/)\n")
    problem = check(journal)[0]
    assert (problem.kind, problem.line) == ("broken-link", lines + 1)
    assert len(check(journal)) == 1


def test_a_table_that_says_otherwise_is_found(tmp_path, journal):
    edit(tmp_path / H03, "priority: medium", "priority: low")
    assert kinds(journal) == [("status-contradiction", "README.md")]


def test_a_status_against_the_last_result_is_found(tmp_path):
    journal = judged(tmp_path, "partial")
    edit(tmp_path / H09, "status: partial", "status: validated")
    assert ("status-contradiction", H09) in kinds(journal)


@pytest.mark.parametrize("status", ["validated", "partial", "invalidated", "inconclusive"])
def test_a_verdict_without_evidence_is_found(tmp_path, status, journal):
    edit(tmp_path / H03, "status: pending", f"status: {status}")
    assert ("no-evidence", H03) in kinds(journal)


def test_an_invalidated_one_whose_mechanism_was_never_looked_at_is_found(tmp_path):
    unknown = {"control": "unknown", "treated": "unknown", "direct": False, "text": ""}
    journal = judged(tmp_path, mechanism=unknown)
    assert kinds(journal) == [("mechanism-not-exercised", H09)]


def test_an_invalidated_one_that_was_tested_on_another_task_is_found(tmp_path):
    plan = plan_of()
    for arm in plan["arms"]:
        arm["config"]["task"] = "gsm8k"
    journal = judged(tmp_path, plan=plan)
    assert kinds(journal) == [("mechanism-not-exercised", H09)]
    assert "which ran gsm8k" in check(journal)[0].text


def test_duplicate_and_unknown_codes_are_found(tmp_path, journal):
    hypotheses = tmp_path / "hypotheses"
    text = (tmp_path / H03).read_text()
    (hypotheses / "h06-twice.md").write_text(text.replace("code: H03", "code: H06"))
    (hypotheses / "h98-x.md").write_text(text.replace("code: H03", "code: H98"))
    (hypotheses / "u01-x.md").write_text(
        text.replace("code: H03", "code: U01").replace("related: [H01", "related: [H97")
    )
    found = kinds(journal)
    assert ("duplicate-code", "hypotheses/h06-twice.md") in found
    assert ("unknown-code", "hypotheses/h98-x.md") in found
    assert ("unknown-code", "hypotheses/u01-x.md") in found
    assert [kind for kind, _ in found].count("unknown-code") == 2


def test_missing_markers_files_and_front_matter_are_found(tmp_path, journal):
    edit(tmp_path / "README.md", "<!-- flatline:resolution -->\n", "")
    edit(tmp_path / H03, "<!-- flatline:results -->\n<!-- /flatline:results -->\n", "")
    (tmp_path / "setup.toml").unlink()
    (tmp_path / H09).write_text("# nothing\n")
    found = kinds(journal)
    assert ("markers", "README.md") in found and ("markers", H03) in found
    assert ("missing-file", "setup.toml") in found and ("front-matter", H09) in found


def test_numbers_that_are_gone_or_broken_or_unnamed_are_found(tmp_path):
    journal = judged(tmp_path, "partial")
    folder = tmp_path / "experimental-results"
    (folder / "orphan.json").write_text((folder / "h09-mask.json").read_text())
    (folder / "h09-mask.json").write_text('{"version": 1, "verdict": "half')
    found = kinds(journal)
    assert ("missing-result", H09) in found and ("no-evidence", H09) in found
    assert ("unrecorded-result", "experimental-results/orphan.json") in found


@pytest.mark.parametrize("broken", [None, 3, [], ["x"], {"arms": 3}, {"arms": [3]}])
def test_stored_plans_that_someone_edited_are_survived(tmp_path, broken):
    journal = judged(tmp_path)
    file = tmp_path / "experimental-results/h09-mask.json"
    kept = json.loads(file.read_text())
    kept["result"] = broken
    kept["plan"]["arms"] = broken
    file.write_text(json.dumps(kept))
    assert kinds(journal) == []
