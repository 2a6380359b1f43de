"""Processes that begin with everything imported: a mutant costs its own seconds and no others.

Importing torch and what trains with it takes longer than two steps of the lab. So it is done once,
and every trial is a fork of that process. A fork shares nothing back: what a mutant breaks, it
breaks for itself.
"""

import json
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

Job = TypeVar("Job")
POLL = 0.05
TIMEOUT = "timeout"


class _Running(NamedTuple, Generic[Job]):
    job: Job
    out: Path
    begun: float


def warm() -> None:
    """Import what every trial needs, before the first fork. One thread: others do not survive."""
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import torch
    import transformers  # noqa: F401
    import trl  # noqa: F401

    from flatline import attach, checkup, diagnose  # noqa: F401

    torch.set_num_threads(1)


def each(
    waiting: deque[Job],
    work: Callable[[Job], dict[str, Any]],
    *,
    at_once: int,
    limit: Callable[[Job], float],
    log: Callable[[Job], Path],
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """The result of every job, as they end; `{"error": "timeout"}` of one that takes longer
    than its limit, in seconds.

    Whoever reads the results may put further jobs into `waiting`, or take some out.
    """
    running: dict[int, _Running[Job]] = {}
    numbers = count()
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job, out = waiting.popleft(), Path(folder) / f"{next(numbers)}.json"
                    running[_forked(job, work, out, log(job))] = _Running(
                        job, out, time.monotonic()
                    )
                time.sleep(POLL)
                for pid, one in list(running.items()):
                    late = time.monotonic() - one.begun > limit(one.job)
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        late = False
                    elif late:
                        _end(pid)
                    else:
                        continue
                    del running[pid]
                    shutil.rmtree(_place(one.out), ignore_errors=True)
                    yield one.job, {"error": TIMEOUT} if late else _result(one.out)
        finally:
            for pid in running:
                _end(pid)


def _forked(job: Job, work: Callable[[Job], dict[str, Any]], out: Path, log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()  # so that what it starts ends with it
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        _place(out).mkdir()
        os.chdir(_place(out))  # what a script writes beside itself is its own
        out.write_text(json.dumps(work(job)), encoding="utf-8")
    except BaseException as error:
        with suppress(OSError):
            out.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}))
    finally:
        os._exit(0)  # no exit handlers of the parent's libraries


def _place(out: Path) -> Path:
    """The folder in which a job works."""
    return out.with_suffix("")


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _result(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"error": "the process ended without a result"}
    return found
