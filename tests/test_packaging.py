"""What a wheel will hold, read from the configuration; `tests/quality` builds and installs it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flatline import Recorder

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flatline"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PATTERNS = PROJECT["tool"]["setuptools"]["package-data"]["flatline"]
IN_EXTRAS = ("duckdb", "jinja2", "markupsafe", "starlette", "uvicorn")
"""Modules that a plain installation has not."""
JUNK = ("__pycache__", ".pyc", ".egg-info", ".DS_Store")


def data_files():
    """All that is no Python and no litter."""
    found = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py")
    return {path for path in found if not any(word in str(path) for word in JUNK)}


def test_every_data_file_is_packed():
    packed = {path for pattern in PATTERNS for path in PACKAGE.glob(pattern)}
    left_out = {str(path.relative_to(PACKAGE)) for path in data_files() - packed}
    assert not left_out, "add a pattern to [tool.setuptools.package-data]"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_packs_something(pattern):
    assert any(path.is_file() for path in PACKAGE.glob(pattern))


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_base_needs_no_training_stack():
    named = " ".join(PROJECT["project"]["dependencies"])
    heavy = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "ray", "wandb")
    assert not [name for name in heavy if name in named]


def plain(*words):
    """`flatline` where only the base is installed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({IN_EXTRAS})); sys.argv[0] = 'flatline'; "
        "from flatline.cli import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words], capture_output=True, text=True, check=False
    )


@pytest.fixture
def log(tmp_path):
    rows = [{"step": step, "reward": 0.5, "loss": 0.1, "kl": 1e-4} for step in range(1, 60)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    return path


@pytest.fixture
def run(tmp_path):
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_step(step=1, reward=0.5)
    return tmp_path / "run"


def test_the_base_diagnoses_a_log_shows_a_run_and_keeps_a_journal(log, run, tmp_path):
    told = plain("diagnose", str(log), "--json", "--fail-on", "never")
    assert json.loads(told.stdout)["tested"] > 0, told.stderr
    for words in (
        ("explain", "H03"),
        ("show", str(run)),
        ("journal", "init", str(tmp_path / "j"), "musique"),
        ("journal", "next", str(tmp_path / "j")),
    ):
        assert plain(*words).returncode == 0, words


def test_the_base_reaches_a_verdict(log, tmp_path):
    command = f"env ARM={{kl}} SEED={{seed}} cp {log} {{run_dir}}"
    words = ("--arms", "kl=1,2", "--outcome", "reward", "--runs", str(tmp_path / "runs"))
    done = plain("investigate", "H03", "--command", command, *words, "--seeds", "4", "--json")
    assert json.loads(done.stdout)["verdict"] == "invalidated", done.stderr


@pytest.mark.parametrize(
    "words, extra",
    [
        (("report", "{log}", "-o", "{folder}/page.html"), "pages"),
        (("ui", "{folder}"), "pages"),
        (("query", "{run}", "SELECT 1"), "query"),
        (("serve",), "serve"),
        (("demo", "--output-dir", "{folder}/demo"), "train"),
    ],
)
def test_what_needs_an_extra_says_which(words, extra, log, run, tmp_path):
    typed = [word.format(log=log, folder=tmp_path, run=run) for word in words]
    done = plain(*typed)
    assert done.returncode == 2, done.stderr
    assert f'pip install ".[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_beside_ones_own_trl_no_extra_is_needed():
    """For a checkup, a recorded training and a watched loop; in truth, in `tests/quality`."""
    script = str(ROOT / "tests" / "beside_trl.py")
    done = subprocess.run(
        [sys.executable, script, "--plain"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_the_metadata_is_complete_and_no_place_holder():
    project = PROJECT["project"]
    for key in ("description", "readme", "license", "keywords", "classifiers"):
        assert project[key], key
    text = (ROOT / "pyproject.toml").read_text().lower()
    assert not [word for word in ("todo", "example.com", "your-name", "changeme") if word in text]


def test_every_dependency_is_pinned_for_ci_and_explained():
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()
    }
    explained = (ROOT / "docs" / "costs.md").read_text().lower()
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    named = {_name(one) for one in project["dependencies"]}
    named |= {_name(one) for group in extras.values() for one in group} - {"flatline-rl"}
    assert not [name for name in sorted(named) if f"`{name}`" not in explained]
    for_ci = ("pages", "query", "train", "semantic", "ray", "dev", "docs")
    installed_by_ci = {_name(one) for group in for_ci for one in extras[group]} - {"flatline-rl"}
    assert not [name for name in sorted(installed_by_ci) if name not in pinned]


def _name(requirement):
    return requirement.split(">=")[0].split("[")[0].strip().lower()
