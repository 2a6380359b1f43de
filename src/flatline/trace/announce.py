"""What a recording tells: the person, on stderr; and whoever started the run, where it is recorded.

An experiment starts commands that it knows nothing about. It names a file in the environment; what
records the run adds its folder there, one JSON string a line.
"""

import json
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from flatline.text import visible

VARIABLE = "FLATLINE_ANNOUNCE"
"""Environment variable that names the file."""


def say(text: str) -> None:
    """On stderr, which may be closed, or a file on the very disk that is full."""
    with suppress(Exception):
        print(f"flatline: {visible(text)}", file=sys.stderr)


def next_for(folder: Path) -> str:
    """What to type once a run is recorded."""
    place = shlex.quote(str(folder))
    return f"`flatline diagnose {place}`, then `flatline report {place} -o report.html`"


def say_recorded(folder: Path, until: str | None) -> None:
    """Where a run is, how far it goes where that is not all, and what to do with it; an experiment
    that started it knows all of that."""
    if VARIABLE not in os.environ:
        how_far = f", {until}" if until else ""
        say(f"recorded in {folder}{how_far}. Next: {next_for(folder)}.")


def announce(folder: Path) -> None:
    """Add the folder to the file, if one is asked for. The run is worth more than the message."""
    file = os.environ.get(VARIABLE)
    if file:
        with suppress(OSError, ValueError), open(file, "a", encoding="ascii") as out:
            out.write(json.dumps(str(folder.resolve())) + "\n")


def announced(file: Path) -> list[Path]:
    """The folders that were announced, each once; a line that is cut off is left out."""
    found: dict[Path, None] = {}
    with suppress(FileNotFoundError):
        for line in file.read_text(encoding="ascii", errors="replace").splitlines():
            with suppress(ValueError, TypeError):
                found[Path(json.loads(line))] = None
    return list(found)
