"""Telling whoever started a run where it is recorded.

An experiment starts commands that it knows nothing about. It names a file in the environment; what
records the run adds its folder there, one JSON string a line.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

VARIABLE = "FLATLINE_ANNOUNCE"
"""Environment variable that names the file."""


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
