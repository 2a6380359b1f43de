"""Files that are whole or absent: what is written is written beside and renamed. And files of a
folder that anybody may have made: only regular ones that lie inside it are opened, and any content
of a JSON or TOML file is either a value or a `ValueError`. A JSON object may carry a checksum of
all else in it, as its last entry: one that was changed since is then known."""

import errno
import json
import mmap
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

CHECKSUM = "checksum"
LARGEST = 64 * 2**20
"""Bytes of a file that is read whole: of ours, only held-out scores have a hundredth of that."""
_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_THE_END = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


class RefusedFile(OSError):
    """What is there is no file of the folder: a link that leads out, a pipe, a device."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)

    def __str__(self) -> str:
        return str(self.strerror)


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
    """Of the values, not of how they are laid out: an editor may do that again."""
    return f"{zlib.crc32(json.dumps(facts, sort_keys=True).encode()):08x}"


def open_plain(path: Path, *, within: Path | None = None) -> BinaryIO:
    """A regular file of a folder, its own unless another is given; raises `OSError` otherwise.

    The folder itself may be a link: somebody named it. What lies inside may not lead out of it.
    """
    handle = _below((within or path.parent).resolve(), path)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise RefusedFile(f"{path.name} is {kind}, not a file")
    return os.fdopen(handle, "rb")


def bytes_in(path: Path, *, within: Path | None = None, most: int = LARGEST) -> bytes:
    """All of a file; `ValueError` where it has more than `most` bytes, also while it grows."""
    with open_plain(path, within=within) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if max(size, len(data)) > most:
        raise ValueError(f"it has {size / 2**20:.0f} MiB, and at most {most // 2**20} are read")
    return data


def mapped(path: Path, *, within: Path | None = None) -> mmap.mmap | bytes:
    """The bytes of a file without reading them."""
    with open_plain(path, within=within) as file:
        empty = os.fstat(file.fileno()).st_size == 0  # which cannot be mapped
        return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def refuse_outside(path: Path, folder: Path) -> None:
    """Raise `RefusedFile` where a path in a folder leads out of it."""
    if not Path(os.path.realpath(path)).is_relative_to(folder.resolve()):
        raise _leads_out(path, folder)


def _below(folder: Path, path: Path) -> int:
    """Opened name by name, none of them a link any more: what is swapped meanwhile is refused."""
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        if path.is_symlink():  # not simply absent
            raise RefusedFile(f"{path.name} is a link that leads nowhere") from error
        raise
    if not real.is_relative_to(folder):
        raise _leads_out(path, folder)
    *folders, name = real.relative_to(folder).parts or (".",)
    place = os.open(folder, _ON_THE_WAY)
    try:
        for one in folders:
            inner = os.open(one, _ON_THE_WAY, dir_fd=place)
            os.close(place)
            place = inner
        return os.open(name, _AT_THE_END, dir_fd=place)
    except OSError as error:
        if error.errno == errno.ENXIO:  # opening a socket
            raise RefusedFile(f"{path.name} is a socket, not a file") from error
        raise
    finally:
        os.close(place)


def _leads_out(path: Path, folder: Path) -> RefusedFile:
    return RefusedFile(
        f"{path.name} is a link that leads out of {folder.name or folder}: whoever made it chose "
        "what is read; if that was you, copy the folder with `cp -rL`"
    )


def json_in(path: Path, *, within: Path | None = None) -> Any:
    """The value in a JSON file of a folder; raises `OSError`, or `ValueError` for what is none."""
    return _parsed(bytes_in(path, within=within), json.loads)


def toml_in(path: Path, *, within: Path | None = None) -> dict[str, Any]:
    """The same for TOML."""
    return toml_from(bytes_in(path, within=within))


def toml_from(data: bytes) -> dict[str, Any]:
    """What a TOML file with these bytes says; `ValueError` where they are none."""
    import tomllib

    return dict(_parsed(data, tomllib.loads))


def _parsed(data: bytes, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(data.decode("utf-8"))
    except RecursionError as error:  # the parsers have another error for nesting
        raise ValueError("it is nested too deep") from error
