"""Results are written everywhere they belong, once, and nothing else changes."""

import json
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.errors import ConfigError
from flatline.journal import Status, board, record, update_status
from flatline.journal.check import check
from flatline.report import page_of
from tests.journals import (
    curves_of,
    everything,
    journal_at,
    plan_of,
    result_of,
    verdict_of,
)
from tests.report_pages import Page

HOSTILE = "a | b\n<!-- /flatline:results -->\n## Fake\n`x` <script>[y](z.md)"


@pytest.fixture
def journal(tmp_path):
    return journal_at(tmp_path)


def recorded(path, **more):
    journal = journal_at(path)
    record(journal, plan_of(), result_of(), verdict_of(**more), curves_of())
    return journal


def child(folder, count, name, *more):
    command = [sys.executable, "-m", "tests.journal_child", str(folder), str(count), name]
    return subprocess.Popen([*command, *more])


def headings(path):
    return re.findall(r"^## \d{4}-.*$", (path / "01-experiments-log.md").read_text(), re.MULTILINE)


def test_a_result_reaches_every_file_and_the_journal_holds_together(tmp_path):
    journal = recorded(tmp_path)
    entry = journal.find("H09")
    assert (entry.status, entry.confidence) == (Status.VALIDATED, "high")
    assert entry.experiments == ("h09-mask",)
    assert entry.note == "Taking H09 away moved the outcome."
    assert "✅ Validated**, confidence high" in entry.file.read_text()
    assert "+0.300 [+0.250, +0.350], n = 3 seeds" in entry.file.read_text()
    assert "| ✅ Validated | HIGH |" in (tmp_path / "README.md").read_text()
    assert len(headings(tmp_path)) == 1
    fix = (tmp_path / "fixes/h09-loss-mask-as-attention.md").read_text()
    assert "| `fault` | mask-as-attention | none |" in fix
    page = (tmp_path / "experimental-results/h09-mask.md").read_text()
    assert "| mask mended | 2 | finished | 0.590 | 0.910 | 0.320 | 90 |" in page
    assert check(journal) == []


OF_CAUSES = "No cause is validated yet."
MISREAD = ("alidated", "VALIDATED")
"""Of a positive control it would say the opposite of what was found."""


@pytest.mark.parametrize(
    "ruling, found", [("validated", "A rung failed"), ("invalidated", "Every rung climbed")]
)
def test_a_positive_control_says_what_was_found_wherever_it_is_shown(
    tmp_path, ruling, found, journal
):
    verdict = verdict_of(ruling, "H00", reason="It stops at `format`.")
    record(journal, plan_of("h00-ladder", "H00"), result_of(), verdict)
    shown = {
        "table": next(line for line in board.table(journal.read()).splitlines() if "[H00" in line),
        "roadmap": next(
            line for line in board.roadmap(journal.read()).splitlines() if "H00" in line
        ),
        "results": journal.find("H00").file.read_text().partition("flatline:results")[2],
        "log": (tmp_path / "01-experiments-log.md").read_text().partition(": H00")[2],
        "page": (tmp_path / "experimental-results/h00-ladder.md").read_text(),
        "console": CliRunner().invoke(app, ["journal", "status", str(tmp_path)]).stdout,
        "report": Page(page_of(tmp_path)).text.partition("The files")[0].replace(OF_CAUSES, ""),
    }
    for place, text in shown.items():
        assert found.lower() in " ".join(text.split()).lower(), place
        assert not any(word in text for word in MISREAD), place
    assert journal.find("H00").status == ruling
    assert (
        f'"verdict": "{ruling}"' in (tmp_path / "experimental-results/h00-ladder.json").read_text()
    )


@pytest.mark.parametrize("ruling", ["partial", "invalidated", "inconclusive"])
def test_only_a_validated_cause_gets_a_fix(tmp_path, ruling):
    journal = recorded(tmp_path, ruling=ruling)
    assert journal.find("H09").status == ruling
    assert [file.name for file in (tmp_path / "fixes").iterdir()] == ["README.md"]


def test_recording_twice_changes_not_a_byte(tmp_path):
    journal = recorded(tmp_path)
    before = everything(tmp_path)
    record(journal, plan_of(), result_of(), verdict_of(), curves_of())
    assert everything(tmp_path) == before


def test_more_seeds_of_an_experiment_are_a_new_entry_of_the_log(tmp_path):
    journal = recorded(tmp_path, ruling="inconclusive")
    record(journal, plan_of(), result_of(4), verdict_of(), curves_of(4))
    assert len(headings(tmp_path)) == 2
    assert headings(tmp_path)[0].endswith("(inconclusive)")
    assert headings(tmp_path)[1].endswith("(validated)")
    assert journal.find("H09").experiments == ("h09-mask",)


def test_the_verdict_that_stands_is_that_of_the_newest_experiment(tmp_path):
    journal = recorded(tmp_path, ruling="inconclusive")
    record(journal, plan_of("again"), result_of(), verdict_of(), curves_of())
    update_status(journal, "H09", "testing")
    record(journal, plan_of(), result_of(), verdict_of("inconclusive"), curves_of())
    assert journal.find("H09").status is Status.VALIDATED
    assert check(journal) == []


def test_hand_written_prose_survives_byte_for_byte(tmp_path, journal):
    mine = b"\r\n \tmine: caf\xc3\xa9 \xe2\x9c\x85\r\n\r\n| a | b \n<div>   "
    files = [
        tmp_path / "README.md",
        tmp_path / "01-experiments-log.md",
        journal.find("H09").file,
    ]
    for file in files:
        file.write_bytes(file.read_bytes() + mine)
    log = files[1].read_bytes()
    record(journal, plan_of(), result_of(), verdict_of(), curves_of())
    assert all(mine in file.read_bytes() for file in files)
    assert files[1].read_bytes().startswith(log)
    untouched = (tmp_path / "hypotheses/h03-kl-divergence.md").read_bytes()
    record(journal, plan_of("more"), result_of(), verdict_of(), curves_of())
    assert (tmp_path / "hypotheses/h03-kl-divergence.md").read_bytes() == untouched


def test_nothing_is_told_about_the_machine(tmp_path, journal):
    plan = plan_of(question="Ran /home/me/train.py in C:\\Users\\me\\x.py; see http://a.b/c/d")
    record(journal, plan, result_of(), verdict_of(), curves_of())
    kept = (tmp_path / "experimental-results/h09-mask.json").read_text()
    assert "/home" not in kept and "Users" not in kept and "output_dir" not in kept
    assert "Ran train.py in x.py; see http://a.b/c/d" in kept
    assert json.loads(kept)["result"]["runs"][0]["folder"] == "control-s0"
    assert not any(b"/home" in content for content in everything(tmp_path).values())


def test_hostile_text_cannot_break_any_file(tmp_path, journal):
    verdict = verdict_of(reason=HOSTILE, would_change=HOSTILE)
    verdict["mechanism"] = {"control": "present", "treated": "absent", "text": HOSTILE}
    result = result_of()
    result["runs"][0]["text"] = HOSTILE
    plan = plan_of(question=HOSTILE, outcome=HOSTILE, factor=HOSTILE, mechanism=HOSTILE)
    plan["arms"][0]["name"] = HOSTILE
    record(journal, plan, result, verdict, curves_of())
    record(journal, plan, result, verdict, curves_of())
    assert len(headings(tmp_path)) == 1
    for name, content in everything(tmp_path).items():
        if name.endswith(".md"):
            assert b"<script" not in content and b"\n## Fake" not in content, name
    assert check(journal) == []


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", ".hidden", "x" * 200, 7])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name, journal):
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match="plan's name"):
        record(journal, plan_of(name), result_of(), verdict_of(), curves_of())
    assert everything(tmp_path) == before


def test_an_experiment_of_another_hypothesis_is_not_overwritten(tmp_path):
    journal = recorded(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match="another name"):
        record(journal, plan_of(code="H03"), result_of(), verdict_of(code="H03"), None)
    assert everything(tmp_path) == before


def test_missing_markers_get_a_place_at_the_end(journal):
    file = journal.find("H09").file
    text = re.sub(r"<!-- /?flatline:results -->\n", "", file.read_text())
    file.write_text(text)
    record(journal, plan_of(), result_of(), verdict_of(), curves_of())
    body = text.partition("\n---\n")[2]
    assert body in file.read_text() and "<!-- flatline:results -->" in file.read_text()


def test_a_broken_file_costs_no_result(tmp_path, journal):
    file = journal.find("H09").file
    file.write_text("---\ncode: H09\n  bad: [\n---\nmine\n")
    with pytest.raises(ConfigError, match=r"h09-loss(.|\n)*numbers are safe(.|\n)*again"):
        record(journal, plan_of(), result_of(), verdict_of(), curves_of())
    assert file.read_text().endswith("mine\n") and len(headings(tmp_path)) == 1
    file.write_text(
        "---\ncode: H09\ntitle: x\npriority: high\nstatus: testing # y\n---\nmine, mended\n"
    )
    record(journal, plan_of(), result_of(), verdict_of(), curves_of())
    assert "status: validated # y" in file.read_text() and "mine, mended" in file.read_text()
    assert len(headings(tmp_path)) == 1 and check(journal) == []


def test_two_writers_do_not_lose_each_others_entry(tmp_path, journal):
    writers = [child(tmp_path, 6, name) for name in ("left", "right")]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    expected = {f"{name}-{i}" for name in ("left", "right") for i in range(6)}
    assert set(journal.find("H09").experiments) == expected
    assert len(headings(tmp_path)) == 12 and check(journal) == []


@pytest.mark.parametrize("files", range(0, 6, 2))
def test_killed_anywhere_every_file_is_whole_and_doing_it_again_completes_it(
    tmp_path, files, journal
):
    record(journal, plan_of("earlier"), result_of(), verdict_of("partial"), curves_of())
    before = everything(tmp_path)
    assert child(tmp_path, 1, "x", str(files)).wait(timeout=60) == -signal.SIGKILL
    half = everything(tmp_path)
    assert sum(half.get(name) != content for name, content in before.items()) <= files
    record(journal, plan_of("x-0"), result_of(), verdict_of(), curves_of())
    assert len(headings(tmp_path)) == 2
    assert journal.find("H09").experiments == ("earlier", "x-0")
    assert check(journal) == []
