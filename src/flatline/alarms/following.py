"""A record that grows: a run directory, or a log of any format that flatline reads."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flatline.alarms.alarm import Alarm
from flatline.alarms.lookout import Lookout
from flatline.errors import TraceError
from flatline.trace import Trace
from flatline.trace.importers import open_log
from flatline.trace.importers.mlflow_store import split_run

EVERY = 2.0
"""Seconds between two looks at whether there is more; a look that takes longer waits as long
again, so that a large log does not keep a core busy."""


def follow(path: Path) -> Iterator[Alarm]:
    """Alarms as they come, until the run is over; of a log nobody knows when that is."""
    lookout, known = Lookout(), ""
    trace = open_log(path)
    while True:
        begun = time.monotonic()
        yield from lookout.look(trace)
        if is_over(trace):
            return
        took = time.monotonic() - begun
        known = _wait_for_more(path, known, max(EVERY, took))
        with suppress(TraceError):  # a file that is being written anew, and is short of its end
            trace = open_log(path)


def is_over(trace: Trace) -> bool:
    """Whether the run said that it has ended, or can write no more."""
    imported = str(trace.run.get("source")).startswith("import:")
    return not imported and bool(trace.run.get("ended") or trace.stopped)


def _wait_for_more(path: Path, known: str, pause: float) -> str:
    """How the files look when they have changed."""
    while True:
        time.sleep(pause)
        found = _state(path)
        if found != known:
            return found


def _state(path: Path) -> str:
    path, _ = split_run(path)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    states = []
    for file in files:
        with suppress(OSError):  # gone since it was listed
            states.append((file.name, file.stat().st_mtime_ns, file.stat().st_size))
    return str(hash(tuple(states)))
