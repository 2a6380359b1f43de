"""Files that are whole or absent: what is written is written beside and renamed. And JSON and
TOML files, read so that any content is either a value or a `ValueError`. A JSON object may carry a
checksum of all else in it, as its last entry: one that was changed since is then known."""

import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

CHECKSUM = "checksum"
LARGEST = 64 * 2**20
"""Bytes of a JSON or TOML file that is read whole: none of ours has a hundredth of that."""


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


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """With a checksum. What JSON has no word for must have become text before."""
    bare = {name: value for name, value in facts.items() if name != CHECKSUM}
    return {**bare, CHECKSUM: _checksum(bare)}


def unsealed(found: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Without its checksum, and whether it is what was written; one that has none is believed."""
    bare = {name: value for name, value in found.items() if name != CHECKSUM}
    return bare, CHECKSUM not in found or found[CHECKSUM] == _checksum(bare)


def _checksum(facts: Mapping[str, Any]) -> str:
    """Of the values, not of how they are laid out: an editor may do that anew."""
    return f"{zlib.crc32(json.dumps(facts, sort_keys=True).encode()):08x}"


def json_in(path: Path) -> Any:
    """The value in a JSON file; raises `OSError`, or `ValueError` for all that is none."""
    return _read(path, json.loads)


def toml_in(path: Path) -> dict[str, Any]:
    """The same for TOML."""
    import tomllib

    return dict(_read(path, tomllib.loads))


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    """The size is asked before anything is read; the parsers have another error for nesting."""
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"it has {size / 2**20:.0f} MiB, and at most {LARGEST // 2**20} are read")
    try:
        return parse(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
