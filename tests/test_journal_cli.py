"""`flatline journal` on the command line: exit codes, JSON, and text that cannot be obeyed."""

import json

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.config import load_config
from flatline.journal import record
from tests.journals import everything, journal_at, plan_of, result_of, verdict_of


def run(*arguments):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["journal", *map(str, arguments)])


def test_init_takes_the_flags_of_train(tmp_path):
    done = run("init", tmp_path / "j", "gsm8k", "--scale-rewards", "false", "--kl-beta", "0.04")
    assert done.exit_code == 0, done.output
    config = load_config(tmp_path / "j" / "setup.toml")
    assert (config.task, config.scale_rewards, config.kl_beta) == ("gsm8k", "none", 0.04)


def test_init_needs_no_task_and_says_what_it_kept(tmp_path):
    assert run("init", tmp_path, "--json").exit_code == 0
    again = json.loads(run("init", tmp_path, "--json").stdout)
    assert again["written"] == [] and "README.md" in again["kept"]
    assert load_config(tmp_path / "setup.toml").task == "musique"


@pytest.mark.parametrize("command", ["status", "next", "check", "resolve"])
def test_every_command_refuses_a_folder_without_a_journal(tmp_path, command):
    done = run(command, tmp_path)
    assert done.exit_code == 2 and "flatline journal init" in done.stderr
    assert everything(tmp_path) == {}


def test_status_prints_the_table_and_json(tmp_path):
    journal_at(tmp_path)
    assert "⏳ Pending" in run("status", tmp_path).stdout
    shape = json.loads(run("status", tmp_path, "--json").stdout)
    assert len(shape["hypotheses"]) == 10 and shape["hypotheses"][3]["code"] == "H03"


def test_status_shows_the_rest_when_a_file_is_broken_and_exits_with_2(tmp_path):
    journal_at(tmp_path)
    (tmp_path / "hypotheses/h03-kl-divergence.md").write_text("---\nstatus: [\n---\n")
    done = run("status", tmp_path)
    assert done.exit_code == 2 and "H04" in done.stdout
    assert "h03-kl-divergence.md:3: the front matter is not valid YAML" in done.stderr


def test_next_prints_one_command_to_type(tmp_path):
    journal_at(tmp_path)
    done = run("next", tmp_path)
    assert done.exit_code == 0 and f"flatline investigate H00 --journal {tmp_path}" in done.stdout
    shape = json.loads(run("next", tmp_path, "--json").stdout)
    assert shape["next"]["code"] == "H00" and len(shape["queue"]) == 10


def test_check_exits_with_0_or_1(tmp_path):
    journal_at(tmp_path)
    assert run("check", tmp_path).exit_code == 0
    (tmp_path / "setup.toml").unlink()
    done = run("check", tmp_path, "--json")
    assert done.exit_code == 1
    assert "missing-file" in [one["kind"] for one in json.loads(done.stdout)["problems"]]


def test_resolve_exits_with_1_while_something_does_not_hold(tmp_path):
    journal = journal_at(tmp_path)
    record(journal, plan_of(), result_of(), verdict_of(), None)
    done = run("resolve", tmp_path, "--json")
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1 and json.loads(done.stdout)["hypothesis"] == "H09"
    assert "does not hold" in run("resolve", tmp_path).stdout


def test_titles_cannot_take_over_the_terminal(tmp_path):
    journal_at(tmp_path)
    run("new", "x \x1b]0;owned\x07 [bold]y[/bold]", tmp_path)
    file = tmp_path / "hypotheses/h03-kl-divergence.md"
    file.write_text(file.read_text().replace("title: KL", 'title: "\\e[2J" #'))
    for command in ("status", "next", "check"):
        done = run(command, tmp_path)
        assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    assert "[bold]y[/bold]" in run("status", tmp_path).stdout
