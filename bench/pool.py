"""Runs cells as processes, several at once; a finished cell is never run again.

Every cell gets one thread and no GPU, so that it is the same run on every machine. However this
ends, by Ctrl-C too, no cell outlives it (`experiment.supervise`).
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.cell import LOG_FILE, PLAN_FILE, RESULT_FILE, TAIL, write_result
from bench.plan import Cell
from flatline.errors import ConfigError, type_to_add
from flatline.experiment import supervise
from flatline.experiment.runs import ENDED_FILE, FLATLINE, unwritable
from flatline.files import write_atomically

GRACE = 5.0
"""Seconds that a cell has to end by itself when it is asked to."""
MOST_SECONDS = 3600.0
"""A cell that takes longer hangs, and is ended: that is its result."""
_POLL = 0.2
CELLS = "cells"
_ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}

OnDone = Callable[[Cell, dict[str, Any]], None]
"""Is told of every cell that has ended, with its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How cells are run."""

    jobs: int
    """Processes at once."""
    minutes: float | None = None
    """No cell is started after so many; None: all are."""
    keep_traces: bool = False
    """Whether the trace of a cell stays in its folder."""
    command: Sequence[str] = FLATLINE
    """What is typed as `flatline`."""


def folder_of(out: Path, cell: Cell) -> Path:
    """Where a cell lies, whether or not it was run."""
    return out / CELLS / cell.name


def unfinished(cells: Iterable[Cell], out: Path) -> list[Cell]:
    """The cells without a result. A result of other settings is refused, not taken for this one."""
    return [cell for cell in cells if not _is_finished(cell, out)]


def run_cells(cells: Sequence[Cell], out: Path, how: How, on_done: OnDone) -> int:
    """Run what is not finished. Returns how many cells were left for want of time."""
    refuse_without_trainer()
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in cells:
        waiting.put(cell)
    ended: queue.SimpleQueue[tuple[Cell, dict[str, Any] | BaseException]] = queue.SimpleQueue()
    stop = threading.Event()
    until = time.monotonic() + 60 * how.minutes if how.minutes is not None else float("inf")

    def work() -> None:
        while not stop.is_set() and time.monotonic() < until:
            try:
                cell = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                result = _run_one(cell, out, how, stop)
            except BaseException as error:  # raised again where it is waited for
                ended.put((cell, error))
                return
            if result is not None:
                ended.put((cell, result))

    with ThreadPoolExecutor(how.jobs, thread_name_prefix="flatline-cell") as pool:
        try:
            workers = [pool.submit(work) for _ in range(how.jobs)]
            while not (all(worker.done() for worker in workers) and ended.empty()):
                _tell_one(ended, on_done)
        finally:
            stop.set()
    return waiting.qsize()


def refuse_without_trainer() -> None:
    """Every cell would fail in the same way, and each failure would count as a result."""
    missing = [name for name in ("torch", "transformers", "trl", "peft") if not find_spec(name)]
    if missing:
        raise ConfigError(
            f"The benchmark trains, and {', '.join(missing)} is not installed.\n"
            f"{type_to_add('train')}."
        )


def _tell_one(
    ended: "queue.SimpleQueue[tuple[Cell, dict[str, Any] | BaseException]]", on_done: OnDone
) -> None:
    with suppress(queue.Empty):
        cell, result = ended.get(timeout=_POLL)
        if isinstance(result, BaseException):
            raise result
        on_done(cell, result)


def _is_finished(cell: Cell, out: Path) -> bool:
    path = folder_of(out, cell) / RESULT_FILE
    if not path.is_file():
        return False
    found = read_result(path)["cell"]
    if found["changes"] != dict(cell.changes):
        raise ConfigError(
            f"{path} is of a cell with other settings: {found['changes']}, not "
            f"{dict(cell.changes)}.\nTwo benchmarks in one folder could not be distinguished.\n"
            "Give another folder with --out."
        )
    return True


def read_result(path: Path) -> dict[str, Any]:
    """What a finished cell came to."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["cell"]["changes"], dict):
            raise TypeError("`changes` is no table")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not the result of a cell: {error}.\n"
            "Remove its folder; `flatline bench` runs the cell again."
        ) from error
    return dict(found)


def _run_one(cell: Cell, out: Path, how: How, stop: threading.Event) -> dict[str, Any] | None:
    """The result of a cell, of a crashed one too; None where it was ended before its time."""
    folder = folder_of(out, cell)
    _prepare(folder, cell)
    keep = ["--keep-trace"] if how.keep_traces else []
    code = _supervised([*how.command, "bench", "cell", str(folder), *keep], folder, stop)
    if code is None:
        return None
    if not (folder / RESULT_FILE).is_file():
        write_result(folder, cell, {"crash": {"exit_code": code, "tail": _tail(folder)}})
    return read_result(folder / RESULT_FILE)


def _prepare(folder: Path, cell: Cell) -> None:
    """An empty folder but for the plan; what an ended cell left there is not this one's."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_atomically(folder / PLAN_FILE, [json.dumps(cell.to_json(), indent=1)])
    except OSError as error:
        raise unwritable(folder, error) from error


def _supervised(command: Sequence[str], folder: Path, stop: threading.Event) -> int | None:
    """Exit code of a command. However this function is left, the command has ended."""
    with (folder / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-IS", supervise.__file__),
                *(str(GRACE), str(folder / ENDED_FILE)),
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ALONE},
            start_new_session=True,
        )
    assert process.stdin is not None
    until = time.monotonic() + MOST_SECONDS
    try:
        while not stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL)
            if time.monotonic() > until:
                break
        if stop.is_set():
            return None
        process.stdin.close()
        return process.wait()
    finally:
        with suppress(OSError):
            process.stdin.close()
        process.wait()


def _tail(folder: Path) -> list[str]:
    """The end of what the cell printed."""
    text = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    return [line[-300:] for line in text.splitlines() if line.strip()][-TAIL:]
