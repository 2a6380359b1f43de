"""Files that are whole or absent: what is written is written beside and renamed."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write lines beside the file and rename, so that a reader never sees half of it."""
    write_exactly(path, (line + "\n" for line in lines))


def write_exactly(path: Path, pieces: Iterable[str]) -> None:
    """The same with text as it is: no line end is added and none is changed."""
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # The system applies the umask: asking for it changes it, for every thread of the process.
    handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        # A lone surrogate in model text must not lose the whole file.
        with os.fdopen(
            handle, "w", encoding="utf-8", errors="backslashreplace", newline=""
        ) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
