"""Runs exhibits: wheels, a process for each release, its result read back."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from museum.exhibit import Exhibit, defect, exhibit
from museum.play import RESULT
from museum.wheels import NotToBeHad, unpacked

ROOT = Path(__file__).parent.parent
STAND_INS = Path(__file__).parent / "stand_ins"
SECONDS = 1800
"""For one release: a minute on an idle core, and much more where others compute."""


def run_exhibit(name: str, out: Path, *, again: bool = False) -> dict[str, Any]:
    """Both releases; a finished one is not run again unless asked for."""
    one = exhibit(name)
    return {
        side: run_release(name, one, release, out, again=again)
        for side, release in (("bad", one.bad), ("good", one.good))
    }


def run_release(
    name: str, one: Exhibit, release: str, out: Path, *, again: bool = False
) -> dict[str, Any]:
    """What came of one release; a wheel that cannot be had is a result of its own. One that was
    stopped on its way begins anew: what it recorded would look like a run that was resumed."""
    folder = out / name / release
    if again or not (folder / RESULT).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            paths = paths_of(name, one, release, out)
        except NotToBeHad as error:
            return {"release": release, "not_had": str(error)}
        in_process(["museum.play", name, str(folder.resolve())], paths, folder)
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except OSError:
        found = {"failure": f"The process ended without a result; see {folder.name}/log.txt."}
    return {"release": release, **found}


def paths_of(name: str, one: Exhibit, release: str, out: Path) -> list[Path]:
    """What a release is run with, in front of what is installed."""
    wheels = (f"{defect(name).library}=={release}", *one.beside)
    paths = [unpacked(wheel, out / "releases") for wheel in wheels]
    return [*paths, STAND_INS] if "vLLM" in one.stands_in else paths


def in_process(module: list[str], paths: list[Path], folder: Path) -> None:
    """`python -m MODULE ...` with these paths; what it prints is kept in `log.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    own = [*(p.resolve() for p in paths), ROOT / "src", ROOT]
    path = os.pathsep.join(map(str, [*own, *beside]))
    environment = os.environ | {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        try:
            subprocess.run(
                [sys.executable, "-m", *module],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            log.write(f"\nStopped after {SECONDS} s.\n")


def named(one: Exhibit, bad: dict[str, Any]) -> bool:
    """Whether the first alarm on the bad release is the cause or its stage."""
    return bool(bad.get("alarms")) and bad["alarms"][0]["code"] in one.expects


def silent(good: dict[str, Any]) -> bool:
    """Whether the good release was looked at and nothing was said."""
    return "alarms" in good and not good["alarms"]
