"""A newcomer's walk: what the README says to type, typed as it stands, gives a true answer.

The install itself is walked in tests/quality/test_package_install.py, which `make test` runs too.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flatline.hypotheses import find
from tests import warm
from tests.front_door import ROOT, blocks_of

README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
STOCK = ROOT / "tests" / "stock" / "reward_function.py"
CHECKPOINT = ROOT / "src" / "flatline" / "training" / "lab" / "checkpoint"
WORDS_A_MINUTE = 200


@pytest.fixture
def checkout(tmp_path):
    """What of a clone the README's commands read."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def surroundings(folder):
    return {"COLUMNS": "96", "MODEL": str(CHECKPOINT), "OUT": str(folder / "out")}


def typed(command, folder):
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **surroundings(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def python(code, folder):
    done = typed([sys.executable, "-c", code], folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def flatline(line, folder):
    words = line.split("#")[0].replace("RUN", "examples/recorded").split()
    assert words[0] == "flatline"
    code = "from flatline.cli import main; main()"
    return typed([sys.executable, "-c", code, *words[1:]], folder)


def before(text):
    """Words that are read until there; tables are looked at, marks are not."""
    return len(re.sub(r"<!--.*?-->|!\[.*?\)|^\|.*", "", README.split(text)[0]).split())


def test_the_first_lines_give_the_answers_that_the_readme_shows(checkout):
    shown = blocks_of(README)
    said = python(f"{PYTHON[0]}{PYTHON[1]}", checkout).stdout
    told = "\n".join(line.rstrip() for line in said.splitlines())
    for block in (shown["answer"], shown["cause"]):
        parts = block.removeprefix("```text\n").removesuffix("\n```").split("\n...")
        assert [part for part in parts if part.strip() not in told] == []
    assert "Your trainer cannot see the question" in told, "which is the defect that was planted"


def test_they_need_no_torch(checkout):
    python(f"{PYTHON[0]}{PYTHON[1]}import sys; assert 'torch' not in sys.modules", checkout)


@pytest.mark.parametrize("line", [line for line in SHELL[-1].splitlines() if line])
def test_the_commands_to_look_further_work_on_the_recorded_example(checkout, line):
    done = flatline(line, checkout)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr[-2000:]
    assert done.stdout.strip()


def test_a_trl_script_with_the_readmes_lines_is_told_its_own_mistake(checkout):
    """Somebody's script whose reward pays everybody the same."""
    made, *lines = PYTHON[2].splitlines()
    assert made.startswith("trainer = GRPOTrainer(")
    script = STOCK.read_text().replace('float(len(set(completion[0]["content"])))', "1.0")
    script = script.replace("max_completion_length=24", "max_completion_length=96")
    script = script.replace("trainer.train()\n", "\n".join(["import flatline", *lines, ""]))
    assert "1.0 for completion" in script and "flatline.checkup(trainer)" in script
    there = f"import os, sys; os.chdir({str(checkout)!r}); sys.stdout = open('said', 'w')\n"
    code, words = warm.run(there + script, folder=checkout, **surroundings(checkout))
    assert code == 0, words[-3000:]
    first = (checkout / "said").read_text().splitlines()[0]
    assert find("H32").headline[1:] in first, first
    said = re.search(r"Next: `(flatline diagnose runs/x)`", words)
    assert said, words[-2000:]
    answer = flatline(said[1], checkout)
    assert find("H32").headline[1:] in answer.stdout.splitlines()[0], answer.stdout


def test_the_first_answer_is_a_minute_of_reading_away_and_that_for_a_script_three():
    assert before("<!-- begin: answer") <= WORDS_A_MINUTE
    assert before("flatline.checkup(trainer)") <= 3 * WORDS_A_MINUTE


def test_a_clone_has_the_examples():
    listed = subprocess.check_output(["git", "ls-files", "examples"], cwd=ROOT, text=True)
    assert {"examples/trainer_state.json", "examples/recorded/run.json"} <= set(listed.split())
    assert {Path(name).suffix for name in listed.split()} == {
        ".json",
        ".md",
        ".parquet",
        ".crc",
        ".toml",
    }
