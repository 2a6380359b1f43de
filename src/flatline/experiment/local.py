"""Runs on this machine: a pool of processes that shares its cores and GPUs among them."""

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from flatline.errors import ConfigError
from flatline.experiment.runs import Job, run

TICK = 1.0
"""Seconds from one look at the progress to the next."""

OnDone = Callable[[Job, str | None], None]
"""Is told of a run that has ended, and what went wrong if it failed."""


class Executor(Protocol):
    """What runs jobs."""

    @property
    def jobs(self) -> int:
        """How many run at once."""

    def execute(self, jobs: Sequence[Job], on_done: OnDone, on_tick: Callable[[], None]) -> None:
        """Run all of them. Whatever ends this early, `on_done` raising too, ends the runs."""

    def of_processes(self, each: int) -> "Executor":
        """The same for runs that are so many processes each, with a GPU for every one."""


class Local:
    """Runs on this machine; one for each GPU, or one for each core where there is none."""

    def __init__(self, jobs: int | None = None, *, processes: int = 1) -> None:
        """`processes` are those of one run."""
        if jobs is not None and jobs < 1:
            raise ConfigError(f"{jobs} runs at once would never end.\nType `--jobs 1` or more.")
        self._asked, self._each = jobs, processes
        self._gpus = gpus()
        self._cores = cores()
        if 0 < len(self._gpus) < processes:
            raise ConfigError(
                f"Every run is {processes} processes, and this machine has {len(self._gpus)} "
                "GPU(s) for them.\nName fewer processes in `--launch`, or run it where there are "
                "more: `--executor ray`."
            )
        self._jobs = jobs or max(1, (len(self._gpus) or self._cores) // processes)

    @property
    def jobs(self) -> int:
        return self._jobs

    def of_processes(self, each: int) -> "Local":
        return Local(self._asked, processes=each)

    def execute(self, jobs: Sequence[Job], on_done: OnDone, on_tick: Callable[[], None]) -> None:
        ended: queue.SimpleQueue[tuple[Job, str | BaseException | None]] = queue.SimpleQueue()
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(self._jobs):
            free.put(slot)
        stop = threading.Event()

        def work(job: Job) -> None:
            if stop.is_set():
                return
            slot = free.get()
            try:
                ended.put((job, run(job, environment=self.environment(slot), stopping=stop.is_set)))
            except BaseException as error:  # raised again where the experiment is conducted
                ended.put((job, error))
            finally:
                free.put(slot)

        with ThreadPoolExecutor(self._jobs, thread_name_prefix="flatline-run") as pool:
            try:
                for job in jobs:
                    pool.submit(work, job)
                _collect(len(jobs), ended, on_done, on_tick)
            finally:
                stop.set()

    def environment(self, slot: int) -> dict[str, str]:
        """A share of the machine; who has chosen a number of threads keeps it.

        Sums come out differently with another number of threads, and so do the tokens drawn: how
        many runs go on at once must not decide what they come to.
        """
        threads = str(max(1, self._cores // (len(self._gpus) or self._cores)))
        share = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
        if self._gpus:
            begin = slot * self._each % (len(self._gpus) // self._each * self._each)
            share["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[begin : begin + self._each])
        return share


def _collect(
    count: int,
    ended: "queue.SimpleQueue[tuple[Job, str | BaseException | None]]",
    on_done: OnDone,
    on_tick: Callable[[], None],
) -> None:
    while count:
        try:
            job, failure = ended.get(timeout=TICK)
        except queue.Empty:
            on_tick()
            continue
        if isinstance(failure, BaseException):
            raise failure
        on_done(job, failure)
        count -= 1


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[str]:
    """Those that this process may use, as `CUDA_VISIBLE_DEVICES` names them; without torch."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(lines))]
