"""A record that grows: a run directory, a log of any format that flatline reads, or a run that a
tracker knows by name."""

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
from flatline.trace.importers.tracked import tracker_of

EVERY = 2.0
"""Seconds between two looks at whether there is more; a look that takes longer waits as long
again, so that a large log does not keep a core busy."""
ASKED_EVERY = 30.0
"""The same where a tracker is asked, which may be on another machine."""


def follow(source: str) -> Iterator[Alarm]:
    """Alarms as they come, until the run is over; of a log nobody knows when that is."""
    lookout, known = Lookout(), ""
    trace = open_log(source)
    while True:
        begun = time.monotonic()
        yield from lookout.look(trace)
        if is_over(trace):
            return
        known = _wait_for_more(source, known, took=time.monotonic() - begun)
        with suppress(TraceError):  # a file that is being written again, and is short of its end
            trace = open_log(source)


def is_over(trace: Trace) -> bool:
    """Whether the run said that it has ended, or can write no more."""
    imported = str(trace.run.get("source")).startswith("import:")
    return not imported and bool(trace.run.get("ended") or trace.stopped)


def _wait_for_more(source: str, known: str, *, took: float) -> str:
    """How the files look when they have changed; a tracker is asked again whatever it has."""
    if tracker_of(source):
        time.sleep(max(ASKED_EVERY, took))
        return known
    while True:
        time.sleep(max(EVERY, took))
        found = _state(Path(source).expanduser())
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
