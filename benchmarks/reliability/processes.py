"""Processes to be struck: forked, so that a trial costs no import, and heard through a pipe."""

import atexit
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class Lost(Exception):
    """Something that was complete is not there any more."""


@dataclass(slots=True)
class Child:
    """A forked process and what it has said so far."""

    pid: int
    pipe: int
    """Its standard output."""
    said: Path
    """File of its standard error."""
    text: str = ""
    code: int | None = None
    """How it ended; negative for a signal, None while it is alive."""
    _open: bool = field(default=True)

    @property
    def lines(self) -> list[str]:
        """Whole lines of its standard output: what it claims to have completed."""
        return self.text.split("\n")[:-1]

    def hear(self, seconds: float) -> None:
        """Read until it ends or the time is over."""
        until = time.monotonic() + seconds
        while self._open and (left := until - time.monotonic()) > 0:
            if select.select([self.pipe], [], [], left)[0]:
                got = os.read(self.pipe, 65536)
                self._open = bool(got)
                self.text += got.decode()
        self._look()

    def until(self, seconds: float) -> bool:
        """Whether it has said a line within the time."""
        until = time.monotonic() + seconds
        while not self.lines and self._open and time.monotonic() < until:
            self.hear(0.02)
        return bool(self.lines)

    def end(self) -> int:
        """Kill it if it is alive, and hear the rest."""
        self._look()
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)
        self.hear(0.5)
        os.close(self.pipe)
        return self.code

    def _look(self) -> None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None


def forked(work: Callable[[], object], said: Path) -> Child:
    """Start the work in a process of its own."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return Child(pid, read, said)
    os.close(read)
    os.setsid()
    atexit._clear()  # what the parent will do at its end is not this one's
    os.dup2(write, 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    code = _code_of(work)
    atexit._run_exitfuncs()  # as the interpreter does, and `os._exit` does not
    os._exit(code)


def done_by(work: Callable[[], object], said: Path, *, seconds: float) -> Child:
    """The process after its end, or killed where it took too long."""
    child = forked(work, said)
    child.hear(seconds)
    late = child.code is None and child._open
    child.end()
    if late:
        raise Lost(f"no answer within {seconds:g} s")
    return child


def _code_of(work: Callable[[], object]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        work()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
