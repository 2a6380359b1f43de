"""One writer per process of a run, and one number for every start of it.

Every process holds `.lock.rR` while it writes; the file says which segment it is in. `.lock` is
held for moments only: while a process chooses its segment, and while it changes `run.json`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatline.errors import TraceError
from flatline.trace.folder import table_files

LOCK = ".lock"


class RankLock:
    """Held by the one process that writes as this rank; the system lets go when it dies."""

    def __init__(self, folder: Path, rank: int) -> None:
        with folder_lock(folder):
            self._handle = _take(folder / f"{LOCK}.r{rank}")
            if self._handle is None:
                raise TraceError(
                    f"{folder} is being written by another process (rank {rank}).\n"
                    "Two runs in one directory would be read as one.\n"
                    "Wait for it to end, or give this run a directory of its own."
                )
            self.segment = _segment(folder, rank)
            """Which start of the run this is."""
            os.truncate(self._handle, 0)
            os.pwrite(self._handle, str(self.segment).encode(), 0)

    def release(self) -> None:
        if self._handle is not None:
            _unlock(self._handle)
            self._handle = None


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Alone in this folder, for moments."""
    handle = _take(folder / LOCK, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            _unlock(handle)


def is_held(path: Path) -> bool:
    """Whether a live process writes under this lock; False where nobody can tell."""
    try:
        # Taken and let go inside: neither a writer that starts now nor another look may find it.
        with folder_lock(path.parent):
            handle = _take(path)
            if handle is not None:
                _unlock(handle)
            return handle is None
    except (OSError, ImportError):
        return False


def _segment(folder: Path, rank: int) -> int:
    """The one that other processes of this start are in, else a new one."""
    files = table_files(folder)
    own = {name.segment for name in files if name.rank == rank}
    live = {_live_segment(path) for path in folder.glob(f"{LOCK}.r*") if path.suffix != f".r{rank}"}
    joined = max((segment for segment in live if segment is not None), default=None)
    if joined is not None and joined not in own:
        return joined
    return max((name.segment + 1 for name in files), default=0)


def _live_segment(path: Path) -> int | None:
    handle = _take(path)
    if handle is not None:
        _unlock(handle)
        return None
    text = path.read_text(encoding="ascii", errors="replace")
    return int(text) if text.isdigit() else None


def _take(path: Path, *, wait: bool = False) -> int | None:
    """A handle that holds the lock, or None where another process has it."""
    import fcntl  # not on every system; reading a trace needs no lock

    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        pass  # some network file systems have no locks; recording matters more
    return handle


def _unlock(handle: int) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may keep its copy of the handle open
    except OSError:
        pass
    finally:
        os.close(handle)
