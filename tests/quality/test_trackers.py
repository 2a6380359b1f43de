"""The real clients of W&B, MLflow, TensorBoard and trackio, in an environment made for them.

They bring some 250 MiB, so `make test` skips what needs them; here nothing may be skipped. The
environment has no torch, which shows that writing to a tracker needs none.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.quality.report import report

ROOT = Path(__file__).parents[2]
TESTS = ("tests/test_publish.py", "tests/test_import_mlflow.py")
NEEDED = ("hypothesis", "packaging", "pytest", "pytest-timeout")


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def python():
    """An interpreter with flatline's own dependencies and the trackers."""
    # Not in pytest's own folders, of which another run at the same time removes the older ones.
    with tempfile.TemporaryDirectory(prefix="trackers-") as place:
        yield installed(Path(place) / "env")


def installed(folder):
    run(sys.executable, "-m", "venv", str(folder))
    extra = project()["optional-dependencies"]["trackers"]
    wanted = [*project()["dependencies"], *extra, *NEEDED]
    pip = (str(folder / "bin" / "pip"), "install", "--quiet", "--constraint")
    run(*pip, str(ROOT / "constraints.txt"), *wanted)
    return folder / "bin" / "python"


def test_every_client_takes_a_diagnosis_and_nothing_is_skipped(python):
    home = python.parent.parent.parent
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HOME": str(home)}
    options = ("-p", "no:cacheprovider", f"--basetemp={home / 'tests'}")
    told = run(str(python), "-m", "pytest", *options, *TESTS, cwd=ROOT, env=env)
    assert "skipped" not in told
    report(f"trackers: {told.strip().splitlines()[-1]}")


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
