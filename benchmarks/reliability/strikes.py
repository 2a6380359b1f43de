"""What can happen to a process. Each fault is told to the child before (`arm`) and strikes once."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from errno import EROFS
from pathlib import Path

from processes import Child

DISK = 24 * 2**20
"""Bytes of the disk that fills up."""
FILLER = "filler"
_TAKEN: list[list[bytearray]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to go wrong."""

    name: str
    strike: Callable[[Child, Path], None]
    """Done by the parent at the moment; the path is the disk of the trial."""
    arm: Callable[[Path], None] = lambda disk: None
    """Done by the child before its work."""
    mend: Callable[[Path], None] = lambda disk: None
    """Done before the next command."""
    lasts: float = 5.0
    """Seconds that the process may go on before it is killed as well."""
    hangs: bool = False
    """The next command is also tried while the process is still there."""


def sending(number: signal.Signals) -> Callable[[Child, Path], None]:
    return lambda child, disk: os.kill(child.pid, number)


def told(effect: Callable[[], None]) -> Callable[[Path], None]:
    """The effect happens inside the child, when the parent sends SIGUSR1."""
    return lambda disk: _on_usr1(effect)


def _on_usr1(effect: Callable[[], None]) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: effect())


def no_more_memory() -> None:
    """The process gets no more than it has, and what it has is taken but for 256 kB."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE")
    held: list[list[bytearray]] = [[], []]
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    held[1] = [bytearray(2**12) for _ in range(64)]
    for size in (2**20, 2**16, 2**12, 2**9):
        try:
            while True:
                held[0].append(bytearray(size))
        except MemoryError:
            continue
    _TAKEN.append(held.pop(0))


def fill(child: Child, disk: Path) -> None:
    """Take all that is free, to the last byte."""
    with (disk / FILLER).open("wb", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def read_only(disk: Path) -> None:
    """From SIGUSR1 on nothing under `disk` can be opened for writing, and what is open fails.

    A real remount is refused while files are open for writing, and those are the point.
    """
    struck = False

    def refuse(event: str, args: tuple[object, ...]) -> None:
        if struck and event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            writes = event != "open" or (isinstance(args[2], int) and args[2] & 3)
            if writes and str(args[0]).startswith(str(disk)):
                raise OSError(EROFS, os.strerror(EROFS), str(args[0]))

    def strike() -> None:
        nonlocal struck
        struck = True
        for entry in Path("/proc/self/fd").iterdir():
            if not entry.is_symlink():
                continue
            target = os.readlink(entry)
            if target.startswith(str(disk)) and Path(target).is_file() and ".lock" not in target:
                shut = os.open(target, os.O_RDONLY)
                os.dup2(shut, int(entry.name))
                os.close(shut)

    sys.addaudithook(refuse)
    _on_usr1(strike)


def jumping_clock(disk: Path) -> None:
    """Every second reading of the wall clock is years away, back and forth."""
    jumps = [timedelta(days=-4000), timedelta(0), timedelta(days=9000), timedelta(0)]
    real, count, struck = time.time, 0, False

    def offset() -> float:
        nonlocal count
        count += struck
        return jumps[count % 4].total_seconds() if struck else 0.0

    class Jumping(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(real() + offset(), tz)

    def strike() -> None:
        nonlocal struck
        struck = True

    time.time = lambda: real() + offset()
    for name, module in list(sys.modules.items()):
        if name.startswith("flatline") and getattr(module, "datetime", None) is datetime:
            module.datetime = Jumping  # type: ignore[attr-defined]
    _on_usr1(strike)


FAULTS = (
    Fault(name="kill -9", strike=sending(signal.SIGKILL)),
    Fault(name="SIGTERM", strike=sending(signal.SIGTERM)),
    Fault(name="Ctrl-C", strike=sending(signal.SIGINT)),
    Fault(name="no memory", strike=sending(signal.SIGUSR1), arm=told(no_more_memory), lasts=1.0),
    Fault(
        name="disk full",
        strike=fill,
        mend=lambda disk: (disk / FILLER).unlink(missing_ok=True),
        lasts=1.0,
    ),
    Fault(name="disk read-only", strike=sending(signal.SIGUSR1), arm=read_only, lasts=1.0),
    Fault(name="clock jumps", strike=sending(signal.SIGUSR1), arm=jumping_clock, lasts=1.0),
    Fault(name="hangs", strike=sending(signal.SIGSTOP), hangs=True, lasts=0.0),
)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A tmpfs of a few megabytes; needs the right to mount."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs"]
    subprocess.run(["mount", *options, str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
