"""The sdist and the wheel are built, hold what they should, and work in a clean environment."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.quality.report import report
from tests.test_newcomer import PYTHON
from tests.test_packaging import PACKAGE, ROOT, data_files

LOG = [{"step": step, "reward": 0.5, "loss": 0.1, "kl": 1e-4 * step} for step in range(1, 60)]
HEAVY = ("torch", "transformers", "trl", "scipy", "duckdb", "starlette")


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory):
    """An environment with the wheel and what it needs, and nothing else."""
    return environment(tmp_path_factory.mktemp("clean"), str(built[0]))


@pytest.fixture(scope="module")
def with_pages(built, tmp_path_factory):
    """The same with the extra that draws."""
    return environment(tmp_path_factory.mktemp("pages"), f"{built[0]}[pages]")


def environment(folder, *wanted):
    run(sys.executable, "-m", "venv", str(folder))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    run(*pip, "--constraint", str(ROOT / "constraints.txt"), *wanted)
    return folder / "bin"


def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(built):
    names = {name for name in zipfile.ZipFile(built[0]).namelist() if ".dist-info/" not in name}
    wanted = {path.relative_to(PACKAGE.parent) for path in (*PACKAGE.rglob("*.py"), *data_files())}
    assert names == {path.as_posix() for path in wanted}
    report(f"wheel: {len(names)} files, {built[0].stat().st_size / 1e6:.1f} MB")


def test_the_sdist_holds_the_source_and_no_half_of_the_tests(built):
    with tarfile.open(built[1]) as archive:
        parts = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {"src", "pyproject.toml", "README.md", "LICENSE"} <= parts
    assert "tests" not in parts


def test_a_log_is_diagnosed_without_torch(clean, tmp_path):
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": LOG}))
    assert "diagnose" in run(str(clean / "flatline"), "--help")
    told = run(str(clean / "flatline"), "diagnose", str(log), "--json", "--fail-on", "never")
    assert json.loads(told)["tested"] > 0
    code = f"from importlib.util import find_spec as f; print([n for n in {HEAVY} if f(n)])"
    assert run(str(clean / "python"), "-c", code).strip() == "[]"


def test_the_readmes_first_lines_work_in_a_clean_environment(clean):
    code = "".join(PYTHON[:2])
    assert "flatline.diagnose" in code
    told = run(str(clean / "python"), "-c", code, cwd=ROOT, env={"PATH": os.environ["PATH"]})
    assert "Your trainer cannot see the question" in told


def test_a_report_finds_its_templates(with_pages, tmp_path):
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": LOG}))
    run(str(with_pages / "flatline"), "report", str(log), "-o", str(tmp_path / "page.html"))
    assert "</html>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "words, extra", [(("checkup", "musique"), "train"), (("ui", "."), "pages")]
)
def test_what_needs_an_extra_says_so(clean, words, extra):
    done = subprocess.run(
        [str(clean / "flatline"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f'pip install ".[{extra}]"' in done.stderr and "Traceback" not in done.stderr
