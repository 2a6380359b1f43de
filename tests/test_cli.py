"""The command line: exit codes, clean stdout, and text that cannot take over a terminal."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flatline.cli.evaluate as command
from flatline import __version__, faults
from flatline.cli import app, demo
from flatline.cli.text import visible
from flatline.errors import ConfigError, ModelError
from flatline.journal.pages import effect_text
from flatline.rollout.record import Turn
from tests.plays import rollout_of

JOURNAL = Path(__file__).parents[1] / "examples" / "journal"
EVALUATE = ["evaluate", "toolmath", "--limit", "12"]


class FakeEngine:
    """A model that is right every second time, and hostile in what it writes."""

    def __init__(self, text: str = "<answer>1</answer>") -> None:
        self.text = text

    def play(self, jobs, *, seed, on_done=None):
        rollouts = []
        for i, job in enumerate(jobs):
            turns = [Turn(text=self.text)]
            rollouts.append(
                rollout_of(job.problem.id, job.sample, reward=float(i % 2), turns=turns)
            )
            on_done(rollouts[-1])
        return rollouts


@pytest.fixture
def run(monkeypatch):
    def run(*arguments, engine=None):
        make = engine if callable(engine) else lambda *_: engine or FakeEngine()
        monkeypatch.setattr(command, "_engine", make)
        runner = CliRunner(env={"COLUMNS": "160"})
        return runner.invoke(app, list(arguments), prog_name="flatline")

    return run


def test_help_is_fast_and_brings_no_heavy_imports():
    code = (
        "import sys, flatline.cli; "
        "heavy = {'torch', 'numpy', 'scipy', 'transformers', 'datasets'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Generous: the machine may be busy. On an idle one it takes 0.2 s.
    assert time.perf_counter() - start < 3


def test_the_version_is_the_package_s_own(run):
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"flatline {__version__}\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["explain"], 0),
        (["diagnose", "{log}"], 1),
    ],
)
def test_a_reader_that_goes_away_changes_no_exit_code(words, code, tmp_path):
    log = tmp_path / "log.jsonl"
    rows = ({"step": i, "reward": 0.3 + i % 2 / 9, "learning_rate": 0} for i in range(1, 60))
    log.write_text("\n".join(map(json.dumps, rows)))
    typed = [sys.executable, "-c", "from flatline.cli import main; main()"]
    typed += [word.format(log=log) for word in words]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(typed, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (code, "")


def test_json_is_alone_on_stdout(run):
    done = run(*EVALUATE, "--json", "--show", "1")
    got = json.loads(done.stdout)
    assert got["parts"]["combined"]["n"] == 12
    assert got["per_hop"].keys() <= {"2", "3", "4"}
    assert (got["model"], got["datasets"], got["task"]) == ("lab", "lab", "toolmath")
    assert (got["seed"], got["sampling"]["temperature"]) == (0, 1.0)
    assert "gold answer" in done.stderr


def test_a_comparison_is_paired_and_says_which_way_it_goes(run):
    done = run(*EVALUATE, "--compare", "other", "--json")
    got = json.loads(done.stdout)
    assert (got["difference"]["model"], got["difference"]["minus"]) == ("other", "lab")
    assert got["difference"]["parts"]["combined"]["value"] == 0.0
    assert got["other"]["model"] == "other"
    assert "other minus lab" in run(*EVALUATE, "--compare", "other").stdout


def test_a_random_model_in_a_folder_is_played_from_end_to_end(tmp_path):
    tiny = pytest.importorskip("tests.tiny")
    tiny.tiny_model().save_pretrained(tmp_path)
    tiny.tokenizer_with().save_pretrained(tmp_path)
    arguments = ["--model", str(tmp_path), "--limit", "2", "--samples", "1"]
    arguments += ["--max-new-tokens", "4", "--json"]
    done = CliRunner().invoke(app, ["evaluate", "toolmath", *arguments])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["finish"]["turn_length"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "nope"], "No task is called 'nope'"),
        (["evaluate", "gsm8k", "--retriever", "bm25"], "gsm8k has no option 'retriever'"),
        (["evaluate", "musique", "--retriever", "psychic"], "psychic"),
        (["evaluate", "gsm8k", "--datasets", "missing.jsonl"], "no file or folder missing.jsonl"),
        (["evaluate", "gsm8k", "--datasets", "lab,,test[:99999]"], "out of range"),
        (["evaluate", "gsm8k", "--output", "/nowhere/x.jsonl"], "its folder does not exist"),
        (
            ["evaluate", "gsm8k", "--greedy", "--samples", "8"],
            "every rollout of a problem is the same",
        ),
        (["tasks", "check", "nope"], "No task is called 'nope'"),
        (["tasks", "show", "gsm8k", "--index", "99999"], "past the end"),
    ],
)
def test_bad_input_exits_with_2_and_a_message_without_traceback(run, arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("flatline: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_the_model_is_a_message_with_control_characters_shown(run):
    def broken(*_):
        raise ModelError("no model \x1b[31mred")

    done = run(*EVALUATE, engine=broken)
    assert done.exit_code == 2
    assert done.stderr.endswith("flatline: no model \\x1b[31mred\n")


def test_our_own_bugs_keep_their_traceback(run):
    def broken(*_):
        raise KeyError("bug")

    assert isinstance(run(*EVALUATE, engine=broken).exception, KeyError)


def test_an_interrupt_is_quiet_and_exits_with_130(run):
    def interrupted(*_):
        raise KeyboardInterrupt

    done = run(*EVALUATE, engine=interrupted)
    assert done.exit_code == 130
    assert "Traceback" not in done.stderr
    assert "Abort" not in done.stderr


def test_what_a_model_writes_is_neither_markup_nor_obeyed_by_the_terminal(run):
    hostile = "[bold]x[/nope] \x1b[2J\x07 \u202e [link=http://a]b[/link] 😀 שלום\r"
    done = run(*EVALUATE, "--show", "1", engine=FakeEngine(hostile))
    assert done.exit_code == 0
    assert (
        "[bold]x[/nope] \\x1b[2J\\x07 \\u202e [link=http://a]b[/link] 😀 שלום\\x0d" in done.stdout
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[0m", "\\x1b[0m"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("a\u2066b\u2028c", "a\\u2066b\\u2028c"),
        ("\ud800", "\\ud800"),
        ("👩‍🚀 é ع", "👩‍🚀 é ع"),
    ],
)
def test_control_characters_are_made_visible_and_the_rest_is_kept(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize("device", ["quantum", "cuda:999", "cpu:1", ""])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ConfigError, match="not a device of this machine"):
        command.refuse_missing_device(device)
    command.refuse_missing_device("cpu")
    command.refuse_missing_device(None)


def test_tasks_check_passes_on_sound_data(run):
    done = run("tasks", "check", "toolmath", "--limit", "20")
    assert (done.exit_code, done.stdout) == (0, "20 problems, 0 violations\n")
    assert json.loads(run("tasks", "check", "gsm8k", "--limit", "9", "--json").stdout) == {
        "problems": 9,
        "violations": [],
        "ceiling": None,
    }


def test_tasks_check_exits_with_1_where_a_wrong_play_earns_as_much_as_gold(run, monkeypatch):
    from flatline.tasks.toolmath import ToolMath

    scripts = lambda self, problem: {"not_wrong": self.gold(problem)}  # noqa: E731
    monkeypatch.setattr(ToolMath, "corruptions", scripts)
    done = run("tasks", "check", "toolmath", "--limit", "30")
    assert done.exit_code == 1
    assert "not wrong earns no less than gold" in done.stdout
    assert "... and 10 more" in done.stdout
    assert len(json.loads(run("tasks", "check", "toolmath", "--json").stdout)["violations"]) == 1024


def test_the_demo_tells_each_defect_its_own_gain_as_the_journal_has_it():
    told = demo._what_gave_what("+0.298", 256)
    kept = JOURNAL / "experimental-results"
    for names, (code, gave) in demo.ALONE.items():
        [file] = [one for one in kept.glob(f"{code.lower()}-*.json") if "h06" not in one.name]
        found = json.loads(file.read_text())
        control, treated = (found["plan"]["arms"][i]["config"]["fault"] for i in (0, 1))
        assert control == demo.FAULT
        assert {one.fault.name for one in faults.find(control)} - set(treated.split("+")) == set(
            names.split("+")
        )
        assert gave == effect_text(found["verdict"]["effect"])
        assert f"{code} ({names}): {gave}" in told
    together = {one.fault.name for one in faults.find(demo.FAULT)}
    assert {name for names in demo.ALONE for name in names.split("+")} == together


def test_the_demo_breaks_finds_mends_and_proves(tmp_path, monkeypatch):
    own, train = demo._Story.config, demo._train
    small = {"batch_size": 16, "num_generations": 4, "lora_targets": "q_proj,v_proj"}
    small |= {"datasets": "lab,,train[:64]", "eval_datasets": "lab,,validation[:8]"}
    monkeypatch.setattr(demo._Story, "config", lambda *args: replace(own(*args), **small))
    monkeypatch.setattr(demo, "_train", lambda config: train(replace(config, max_steps=4)))
    arguments = ["demo", "--steps", "6", "--problems", "8", "--output-dir", str(tmp_path)]
    done = CliRunner(env={"COLUMNS": "100"}).invoke(app, arguments, prog_name="flatline")
    assert done.exit_code == 0
    answer = done.stdout.split("The answer")[1]
    assert "Your trainer cannot see the question or the documents." in answer
    assert "Cause: H09 loss-mask-as-attention" in answer
    for code, gave in demo.ALONE.values():  # what is gained by all is not said of the first cause
        assert gave in " ".join(answer.split()) and code in answer
    cleared = done.stdout.split("Ruled out: ")[-1]
    assert all(code in cleared for code in ("H02", "H03", "H06"))
    chapters = ["The symptom", "The control", "The checkup", "The proof", "The answer"]
    places = [done.stdout.index(chapter) for chapter in chapters]
    assert places == sorted(places)
    assert {path.name for path in tmp_path.iterdir()} >= {"broken", "control", "mended"}
    assert (tmp_path / "broken" / "diagnosis.json").is_file()
    page = tmp_path / "report.html"
    assert done.stdout.index("The answer") < done.stdout.index(str(page))
    assert page.stat().st_size <= 1e6
    text = page.read_text()
    assert "On the same 8 held-out problems “mended” ends" in text
    assert "Your trainer cannot see the question or the documents." in text
    assert "H09 loss-mask-as-attention" in text and 'id="rollout-' in text
