"""Writing a trace while a run trains.

The trainer hands over rows, or work that makes rows, and goes on; a thread does the work, turns the
rows into Arrow and appends them to streams.
Recording never breaks or stalls the training: a full queue drops token detail first, and an error
of the disk ends the recording, not the run.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from flatline.errors import TraceError
from flatline.trace.account import Account
from flatline.trace.announce import announce, say, say_recorded
from flatline.trace.backlog import Backlog, Item, Overfull
from flatline.trace.ending import Ending, words_of
from flatline.trace.files import STREAM, FileName, StreamFile, compact, table_files
from flatline.trace.folder import merge_account, read_run, write_run
from flatline.trace.lock import RankLock, folder_lock
from flatline.trace.reader import Trace
from flatline.trace.rows import Row, refuse_unknown, to_batch
from flatline.trace.schema import SCHEMA_VERSION, TABLES

FLUSH_WAIT = 2.0
"""Seconds that the end of a step waits until it is in the file; usually milliseconds."""
CLOSE_WAIT = 60.0
"""Seconds that closing waits for the queue."""


class Sink(Protocol):
    """Where rows go while a run trains."""

    dropped: int
    """Rollouts whose token detail was dropped."""

    def write(self, table: str, rows: Sequence[Row]) -> None:
        """Take rows of a table; the caller no longer changes their arrays."""

    def prepare(self, table: str, rows: Sequence[Row]) -> Callable[[], None]:
        """Have rows ready to be written; the call writes them. For work that `do` does."""

    def do(
        self,
        act: Callable[[], None],
        *,
        size: int = 0,
        token_rows: int = 0,
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Do work in order with what is written, beside the training where that is possible.

        `size` bytes wait with it. Where it is about token detail it may be dropped, and then
        `otherwise` is done.
        """

    def end_step(self) -> None:
        """What was written before is a completed step."""

    def update_run(self, **facts: Any) -> None:
        """Merge facts into `run.json`."""

    def stop(self, why: str) -> None:
        """No more rows will come, though the run goes on: the reader is told."""

    def died(self, error: BaseException) -> None:
        """The training ended with this, and is told so by `close`. Nothing of it is kept."""

    def close(self, *, clean: bool = True) -> None:
        """No more rows; `clean` where the run ended by itself."""


class MemorySink:
    """Keeps what is written; `trace` reads it."""

    def __init__(self, *, run: Mapping[str, Any] | None = None) -> None:
        self.dropped = 0
        self._run = dict(run or {})
        self._stops: list[str] = []
        self._rows: dict[str, list[Row]] = {table: [] for table in TABLES}

    def write(self, table: str, rows: Sequence[Row]) -> None:
        refuse_unknown(table, {name for row in rows for name in row})
        self._rows[table].extend(rows)

    def prepare(self, table: str, rows: Sequence[Row]) -> Callable[[], None]:
        return lambda: self.write(table, rows)

    def do(self, act: Callable[[], None], **_: Any) -> None:
        act()

    def end_step(self) -> None:
        pass

    def update_run(self, **facts: Any) -> None:
        self._run.update(facts)

    def stop(self, why: str) -> None:
        self._stops = [f"The recording broke off, and the training went on without it: {why}."]

    def died(self, error: BaseException) -> None:
        pass

    def close(self, *, clean: bool = True) -> None:
        pass

    def written(self, table: str) -> list[Row]:
        """The rows of one table."""
        return self._rows[table]

    def trace(self) -> Trace:
        """What was written until now."""
        trace = Trace.from_rows(run=self._run, **self._rows)
        trace.warnings.extend(self._stops)
        return trace


class Writer:
    """Writes the rows of one process into a run directory."""

    def __init__(
        self,
        folder: str | Path,
        *,
        rank: int = 0,
        run: Mapping[str, Any] | None = None,
        beside: bool = True,
    ) -> None:
        """`beside` the training, or at the end of each step: a trainer on the CPU has no core free,
        and its own threads wait for each other, so that one that is held up holds up all."""
        self.folder, self.rank = Path(folder), rank
        self.dropped = 0
        self._step = self._complete = 0
        """The latest step that was written, and the latest that a killed process does not lose."""
        self._files: dict[str, StreamFile] = {}
        self._unfit: set[str] = set()
        self._backlog = Backlog(self._count_dropped, patient=not beside)
        self._broken = self._closed = False
        self._flushed = threading.Event()
        self._flushed.set()
        self._pid = os.getpid()
        self._told: dict[str, Any] = {}
        """What `run.json` was told of this run: somebody may remove the file on the way."""
        self._death: Ending | None = None
        self._begin(dict(run or {}))
        announce(self.folder)
        self._thread = threading.Thread(target=self._work, name="flatline-trace", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def write(self, table: str, rows: Sequence[Row]) -> None:
        """Take rows of a table; the caller no longer changes their arrays."""
        if not rows or not self._alive:
            return
        if threading.current_thread() is self._thread:
            self.prepare(table, rows)()
            return
        item = Item(
            act=lambda: self._append(table, rows),
            size=sum(_size(row) for row in rows),
            token_rows=len(rows) if table == "tokens" else 0,
        )
        self._put(item)

    def prepare(self, table: str, rows: Sequence[Row]) -> Callable[[], None]:
        """Turn rows into Arrow; the call appends them. For work that `do` does."""
        batch = to_batch(table, rows, on_unfit=self._say_unfit)

        def append() -> None:
            try:
                if len(batch) and self._alive:
                    self._add(table, batch)
            except Exception as error:  # of the disk; what made the rows is not to blame
                self._stop(error)

        return append

    def do(
        self,
        act: Callable[[], None],
        *,
        size: int = 0,
        token_rows: int = 0,
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Have the thread do work, in order with what is written."""
        if self._alive:
            self._put(Item(act=act, size=size, token_rows=token_rows, otherwise=otherwise))

    def end_step(self) -> None:
        """What was written before is a completed step: a killed process does not lose it."""
        if not self._alive:
            return
        # A disk that hangs costs one wait, not one in every step.
        behind, self._flushed = not self._flushed.is_set(), threading.Event()
        done = self._flushed

        def flush() -> None:
            self._flush()
            done.set()

        self._put(Item(act=flush, due=True))
        if not behind:
            done.wait(FLUSH_WAIT)

    def update_run(self, **facts: Any) -> None:
        """Merge facts into `run.json`; only process 0 does."""
        if self.rank == 0 and self._alive:
            self._put(Item(act=lambda: self._merge_run(facts)))

    def stop(self, why: str) -> None:
        """What makes the rows has failed: the trace says so from here on.

        In a thread of its own, that is waited for a moment: the disk may not answer.
        """

        def tell() -> None:
            with suppress(Exception):  # a disk that takes not even this: the run is not closed
                self._account.stopped(self._complete, why)

        telling = threading.Thread(target=tell, name="flatline-account", daemon=True)
        telling.start()
        telling.join(FLUSH_WAIT)

    def died(self, error: BaseException) -> None:
        """The training ended with this; the first counts."""
        self._death = self._death or Ending.of(error)

    def close(self, *, clean: bool = True) -> None:
        """Write what waits and let go; after a clean end the streams become parquet."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._backlog.stop()
        self._thread.join(CLOSE_WAIT)
        try:
            if self._thread.is_alive():  # it holds the files: whoever closed them would hang, too
                waited = f"the disk of {self.folder} has not answered for {CLOSE_WAIT:g} s"
                self._stop(TraceError(waited))
            else:
                self._finish(clean=clean and not self._broken)
        except Exception as error:
            self._stay_open(error, clean=clean)
        finally:
            self._lock.release()

    @property
    def failed(self) -> bool:
        """Whether the recording has stopped because of an error."""
        return self._broken

    def say_recorded(self) -> None:
        """Training is over: where the recording is and how far it goes, and what to type."""
        names: list[FileName] = []
        with suppress(OSError):
            names = table_files(self.folder)
        if FileName("rollouts", self.rank, self._lock.segment) not in names:
            say(
                f"nothing of this run is left in {self.folder}: its files were removed while it "
                "was recorded."
            )
            return
        stop = self._account.stop
        say_recorded(self.folder, stop and f"{stop.until} only, where the recording broke off")

    @property
    def _alive(self) -> bool:
        # A forked child has no thread that would ever write.
        return not (self._closed or self._broken) and os.getpid() == self._pid

    def _begin(self, run: dict[str, Any]) -> None:
        """Errors here are before the training, when the user can still do something."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = RankLock(self.folder, self.rank)
            self._account = Account(self.folder, self.rank, self._lock.segment)
            self._file("rollouts")  # marks the segment as begun, even if nothing follows
            to_batch("rollouts", [])  # Arrow imports pandas on first use, which would delay a step
            if self.rank == 0:
                self._merge_run({**_facts_of_start(), **run})
        except (OSError, ValueError) as error:
            raise TraceError(
                f"{self.folder} cannot be written: {error}.\n"
                "Without it nothing of the run would be recorded.\n"
                "Give a directory that can be created or written to."
            ) from error

    def _put(self, item: Item) -> None:
        try:
            self._backlog.put(item)
        except Overfull:
            self._stop(TraceError(f"the disk of {self.folder} takes too little; memory is full"))

    def _count_dropped(self, rows: int) -> None:
        if not self.dropped:
            say("the disk is slower than the training; some token detail is not recorded.")
        self.dropped += rows
        self._account.dropped(rows)

    def _work(self) -> None:
        try:
            while (item := self._backlog.take()) is not None:
                item.act()
                self._backlog.done(item)
            self._flush()
        except Exception as error:  # whatever it is, the training goes on
            self._stop(error)

    def _append(self, table: str, rows: Sequence[Row]) -> None:
        self._add(table, to_batch(table, rows, on_unfit=self._say_unfit))

    def _add(self, table: str, batch: pa.RecordBatch) -> None:
        self._file(table).append(batch)
        if table == "steps":
            self._step = batch.column("step")[-1].as_py() or self._step

    def _flush(self) -> None:
        step = self._step
        for file in self._files.values():
            file.flush()
        self._complete = step
        self._account.catch_up()

    def _file(self, table: str) -> StreamFile:
        if table not in self._files:
            name = FileName(table, self.rank, self._lock.segment)
            self._files[table] = StreamFile(self.folder / f"{name}{STREAM}", table)
        return self._files[table]

    def _merge_run(self, facts: Mapping[str, Any]) -> None:
        """Into what is there; where it was removed, into what this process has told before."""
        with folder_lock(self.folder):
            known = read_run(self.folder)
            if not self._told and "created" in known:
                facts = {**facts, "created": known["created"], "ended": None}
            write_run(self.folder, {**self._told, **known, **facts})
            self._told |= facts

    def _finish(self, *, clean: bool) -> None:
        if self._death is not None:
            self._account.died(self._death._replace(step=self._complete))
        for file in self._files.values():
            file.close()
        if not clean:
            self._account.close(clean=False)
            return
        for table, file in self._files.items():
            compact(file.path, FileName(table, self.rank, self._lock.segment), say)
        told = self._account.facts
        if self.rank == 0 or told:
            with folder_lock(self.folder):
                ended = {"ended": _now()} if self.rank == 0 else {}
                known = {**self._told, **read_run(self.folder)}
                write_run(self.folder, merge_account(known, told) | ended)
        self._account.close(clean=True)

    def _stay_open(self, error: Exception, *, clean: bool) -> None:
        """All was written, and the files cannot be packed or marked as closed because of this."""
        if self._broken:
            return
        self._broken = True
        say(f"all of the run is recorded; its files could not be closed: {words_of(error)}")
        if clean:
            with suppress(Exception):
                self._account.whole(_now(), words_of(error))

    def _stop(self, error: Exception) -> None:
        """Because of this error; what was written stays, and only what comes after it is lost."""
        said, self._broken = self._broken, True
        if not said:
            say(f"recording stopped, the training goes on: {words_of(error)}")
            self.stop(words_of(error))
        self._backlog.stop(forget=True)
        self._flushed.set()

    def _say_unfit(self, error: TraceError) -> None:
        if str(error) not in self._unfit:
            self._unfit.add(str(error))
            say(f"left out of the recording: {error}")
            self._account.left_out(str(error))

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        # Of a script it is what ended it; who types line by line may have got over it long ago.
        if error is not None and not hasattr(sys, "ps1") and "IPython" not in sys.modules:
            self.died(error)
        self.close(clean=False)


def _facts_of_start() -> dict[str, Any]:
    from flatline import __version__

    return {"schema": SCHEMA_VERSION, "flatline": __version__, "created": _now(), "ended": None}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _size(row: Row) -> int:
    """Bytes that a row keeps in memory, roughly."""
    size = 200
    for value in row.values():
        found = getattr(value, "nbytes", None)
        if found is not None:
            size += int(found)
        elif isinstance(value, str | list | tuple):
            size += len(value) * (1 if isinstance(value, str) else 8)
    return size
