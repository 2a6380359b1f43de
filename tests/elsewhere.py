"""Copies of the installed TRL in other places, and what a checkup says of changes in them."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_of_trl(folder: Path, package: str) -> None:
    """The package, importable from a folder by that name."""
    source = Path(find_spec("trl").origin).parent
    *above, name = package.split(".")
    for count in range(len(above)):
        inside = folder.joinpath(*above[: count + 1])
        inside.mkdir(parents=True)
        (inside / "__init__.py").touch()
    target = folder.joinpath(*above, name)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def lines_named(folder: Path, **changes_by_package: str) -> dict:
    """Package -> change -> the line that was changed, and those that a checkup names."""
    asked = [f"{package}:{changes}" for package, changes in changes_by_package.items()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.elsewhere_child", str(folder), *asked],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
