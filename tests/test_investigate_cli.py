"""`flatline investigate` as a user types it; the runs are a small script that records a trace."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.journal import update_status
from tests.experiments import COMMAND
from tests.journals import journal_at

ARMS = ("--command", COMMAND, "--arms", "kl_beta=0.04,0.0", "--seeds", "3")


def typed(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def begun(folder):
    made = typed("journal", "init", str(folder), "musique", "--kl-beta", "0.04")
    assert made.exit_code == 0, made.stderr
    return folder


def investigate(journal, *more):
    runs = ("--runs", str(journal.parent / "runs"))
    return typed("investigate", "H03", "--journal", str(journal), *runs, *ARMS, *more)


@pytest.fixture(scope="module")
def investigated(tmp_path_factory):
    """A journal, and what its first investigation printed."""
    journal = begun(tmp_path_factory.mktemp("investigated") / "j")
    return journal, investigate(journal, "--json").stdout


def test_a_command_of_the_user_is_compared_and_the_journal_keeps_the_verdict(investigated):
    journal, said = investigated
    verdict = json.loads(said)
    assert verdict["hypothesis"] == "H03"
    assert set(verdict) >= {"verdict", "confidence", "effect", "smallest_effect", "reason"}
    assert set(verdict["effect"]) == {"value", "low", "high", "n"}
    stored = json.loads((journal / "experimental-results/h03-kl-divergence.json").read_text())
    assert stored["verdict"] == verdict
    assert stored["curves"]
    page = (journal / "hypotheses/h03-kl-divergence.md").read_text()
    assert f"status: {verdict['verdict']}" in page
    assert "h03-kl-divergence" in (journal / "01-experiments-log.md").read_text()


def test_asked_again_nothing_is_run_and_nothing_is_written_twice(investigated):
    journal, _ = investigated
    log = (journal / "01-experiments-log.md").read_text()
    runs = journal.parent / "runs"
    made = {path: path.stat().st_mtime_ns for path in runs.glob("*-s*/outcome.json")}
    again = investigate(journal)
    assert made
    assert made == {path: path.stat().st_mtime_ns for path in runs.glob("*-s*/outcome.json")}
    assert (journal / "01-experiments-log.md").read_text() == log
    assert "H03" in again.stdout


@pytest.mark.parametrize("words", [(), ("H09", "--fault", "kl-sign")])
def test_without_a_task_a_journal_or_a_command_nothing_is_trained(words, tmp_path):
    runs = tmp_path / "runs"
    done = typed("investigate", *words, "--runs", runs)
    assert done.exit_code == 2
    assert f"flatline investigate {''.join(words[:1])}{' ' if words else ''}--task" in done.stderr
    assert not runs.exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (("H99",), "H99"),
        (("H03", "--seeds", "1"), "spread between seeds"),
        (("H03", "--executor", "cloud"), "local"),
        (("H03", "--command", "python x.py {a} {seed}"), "--arms"),
        (("H03", "H06", *ARMS), "one hypothesis"),
        (("H03", "--command", "python x.py {kl_beta}", "--arms", "kl_beta=0.04,0"), "{seed}"),
        (("H03", "--outcome", "wealth"), "outcome"),
        (("H03", "H09", "--task", "musique", "--name", "mine"), "2 hypotheses"),
        (("H03", "--journal", "nowhere"), "journal init"),
        (("H03", "--smallest-effect", "0", *ARMS), "smallest_effect"),
    ],
)
def test_what_cannot_be_investigated_is_said_before_anything_runs(words, said, tmp_path):
    done = typed("investigate", *words, "--runs", tmp_path / "runs")
    assert done.exit_code == 2
    assert said in done.stderr
    assert not list(tmp_path.rglob("outcome.json"))


FIVE = ("--command", COMMAND, "--arms", "kl_beta=0.04,0.0,0.1,0.2,0.3")


@pytest.mark.parametrize(
    "words, command",
    [
        (("--seeds=3", "H03", *FIVE), shlex.join(("H03", *FIVE, "--seeds", "4"))),
        (
            ("H09", "--seeds", "2", "--script", "x.py", "--", "--seeds", "2"),
            "H09 --script x.py --seeds 3 -- --seeds 2",
        ),
    ],
)
def test_so_few_seeds_that_nothing_can_come_of_it_train_nothing_and_the_command_is_given(
    words, command, tmp_path
):
    done = typed("investigate", "--runs", tmp_path, *words)
    assert done.exit_code == 2
    assert f"Type `flatline investigate --runs {tmp_path} {command}`." in done.stderr
    assert not list(tmp_path.iterdir())


def test_of_what_is_not_begun_the_journal_says_what_it_said(tmp_path):
    journal = journal_at(tmp_path / "j")
    update_status(journal, "H03", "validated", "high")
    words = ("--journal", str(journal.path), "--runs", str(tmp_path), "--seeds", "3")
    done = typed("investigate", "H03", *words, *FIVE)
    assert done.exit_code == 2
    entry = journal.find("H03")
    assert (entry.status, entry.confidence) == ("validated", "high")
