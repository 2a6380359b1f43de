"""One writer per process of a run, and one number for every start of it.

Every process holds `.lock.rR` while it writes; the file says which segment it is in. `.lock` is
held for moments only: while a process chooses its segment, and while it changes `run.json`.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flatline.errors import TraceError
from flatline.files import RefusedFile
from flatline.trace.announce import say
from flatline.trace.files import table_files

LOCK = ".lock"
SAY_AFTER, PATIENCE = 5.0, 60.0
"""Seconds after which a wait for `.lock` is said, and given up: one holder needs milliseconds."""
_POLL = 0.01
_OURS: set[tuple[int, Path]] = set()
"""What this process holds. With its number: a forked child has the list, and holds nothing."""
_HANDLES: set[int] = set()
"""All that may hold a lock. A forked child would hold it as well, and outlive the run: a worker of
a data loader may, where the run is killed."""


def _let_go_in_child() -> None:
    """Closing leaves the lock to the parent; unlocking would take it from it."""
    while _HANDLES:
        with suppress(OSError):
            os.close(_HANDLES.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


class RankLock:
    """Held by the one process that writes as this rank; the system lets go when it dies."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / f"{LOCK}.r{rank}"
        self._mine = (os.getpid(), path.resolve())
        with folder_lock(folder):
            self._handle = _take(path)
            if self._handle is None:
                raise _in_use(folder, rank, ours=self._mine in _OURS)
            self.segment = _segment(folder, rank)
            """Which start of the run this is."""
            os.truncate(self._handle, 0)
            os.pwrite(self._handle, str(self.segment).encode(), 0)
            _OURS.add(self._mine)

    def release(self) -> None:
        if self._handle is not None and self._mine[0] == os.getpid():
            _OURS.discard(self._mine)
            _unlock(self._handle)
            self._handle = None


@contextmanager
def folder_lock(folder: Path, *, patience: float | None = None) -> Iterator[None]:
    """Alone in this folder, for moments; a holder that hangs for `patience` seconds is an error."""
    handle = _wait_for(folder / LOCK, PATIENCE if patience is None else patience)
    try:
        with suppress(OSError):  # on a full disk nobody will know who it was
            os.truncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {time.monotonic_ns()}".encode(), 0)
        yield
    finally:
        _unlock(handle)


def is_live(folder: Path) -> bool:
    """Whether any process writes into this folder; False where nobody can tell."""
    return any(is_held(path) for path in folder.glob(f"{LOCK}.r*"))


def is_held(path: Path) -> bool:
    """Whether a live process writes under this lock; False where nobody can tell."""
    try:
        # Taken and let go inside: neither a writer that starts now nor another look may find it.
        with folder_lock(path.parent, patience=1.0):
            handle = _take(path)
            if handle is not None:
                _unlock(handle)
            return handle is None
    except TraceError:  # somebody is there, and hangs
        return True
    except (OSError, ImportError):
        return False


def _in_use(folder: Path, rank: int, *, ours: bool) -> TraceError:
    if ours:
        seen = f"This process already records into {folder} (rank {rank})."
        way_out = "`detach()` that attachment, or `close()` that recorder, first"
    else:
        seen = f"{folder} is being written by another process (rank {rank})."
        way_out = "Wait for it to end"
    return TraceError(
        f"{seen}\nTwo runs in one directory would be read as one.\n"
        f"{way_out}, or give this run a separate directory."
    )


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


def _wait_for(path: Path, patience: float) -> int:
    """A handle that holds the lock. As long as it changes hands, nobody hangs."""
    start, seen, said = time.monotonic(), b"", False
    while True:
        handle = _take(path)
        if handle is not None:
            return handle
        holder = path.read_bytes()
        now = time.monotonic()
        if holder != seen:
            start, seen = now, holder
        if now - start > patience:
            raise _hanging(path, seen, patience)
        if now - start > SAY_AFTER and not said:
            say(f"waiting for {path}, which {_process(seen)} holds.")
            said = True
        time.sleep(_POLL)


def _hanging(path: Path, holder: bytes, patience: float) -> TraceError:
    return TraceError(
        f"{path} is held by {_process(holder)}, which has not let go of it for {patience:g} s.\n"
        "It is held for milliseconds, so that process hangs: it was stopped, or its disk does not "
        "answer.\nEnd it and type the same command again: every file is whole."
    )


def _process(holder: bytes) -> str:
    pid = holder.split(b" ")[0]
    return f"process {pid.decode()}" if pid.isdigit() else "another process"


def _take(path: Path) -> int | None:
    """A handle that holds the lock, or None where another process has it."""
    import fcntl  # not on every system; reading a trace needs no lock

    # It is written to: a link in a folder that somebody sent would name a file to destroy.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    _HANDLES.add(handle)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        _close(handle)
        raise RefusedFile(f"{path.name} is no regular file")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _close(handle)
        return None
    except OSError:
        pass  # some network file systems have no locks; recording matters more
    return handle


def _unlock(handle: int) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_UN)  # a fork in C keeps its copy of the handle open
    except OSError:
        pass
    finally:
        _close(handle)


def _close(handle: int) -> None:
    _HANDLES.discard(handle)
    os.close(handle)
