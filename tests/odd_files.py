"""What somebody may have put where a file should be: never to be waited for, nor shown."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

SECRET = "the-content-of-another-file"
_OUTSIDE = tempfile.NamedTemporaryFile("w")  # noqa: SIM115, as long as the tests run
_OUTSIDE.write(f'{{"schema": 1, "notes": ["{SECRET}"]}}\n')
_OUTSIDE.flush()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def _link_out(path: Path) -> None:
    path.symlink_to(_OUTSIDE.name)


def _link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.mkdir()


def _huge(path: Path) -> None:
    """It takes no room on the disk."""
    path.touch()
    os.truncate(path, 2**43)


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a socket": _socket,
    "a link that leads out": _link_out,
    "a link to a device": _link_to_a_device,
    "a link to nowhere": _link_to_nowhere,
    "a link to itself": _link_to_itself,
    "a folder": _folder,
    "8 TiB of zeros": _huge,
}


def put(path: Path, kind: str) -> None:
    """The odd thing in the place of a file."""
    path.unlink(missing_ok=True)
    ODD[kind](path)
