"""How far every arm of an experiment is."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flatline.errors import TraceError
from flatline.experiment.evidence import Runs
from flatline.experiment.runs import ANNOUNCED_FILE, Job
from flatline.trace import Trace
from flatline.trace.announce import announced


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one arm is."""

    arm: str
    """Its name."""
    seeds_done: int
    """Runs of it that have finished."""
    seeds_planned: int
    """Runs of it at most; a clear effect needs fewer."""
    step: int | None
    """Optimizer step of the furthest run that is going; None if there is none."""
    steps_planned: int | None
    """Optimizer steps of a run, where known."""
    seconds: float
    """Since the experiment was taken up."""


class Meter:
    """Reads how far the runs are, from what they have recorded until now."""

    def __init__(self, planned: Mapping[str, Sequence[int]]) -> None:
        self._planned = planned
        """Seeds of every arm, by its name."""
        self._start = time.monotonic()

    def read(self, runs: Runs, going: Iterable[Job]) -> list[Progress]:
        """One for every arm."""
        jobs = list(going)
        return [
            self._of(arm, seeds, runs, [job for job in jobs if job.arm == arm])
            for arm, seeds in self._planned.items()
        ]

    def _of(self, arm: str, seeds: Sequence[int], runs: Runs, jobs: list[Job]) -> Progress:
        step, planned = max(map(_position, jobs), default=(-1, math.nan), key=lambda one: one[0])
        return Progress(
            arm=arm,
            seeds_done=sum((arm, seed) in runs for seed in seeds),
            seeds_planned=len(seeds),
            step=None if step < 0 else step,
            steps_planned=int(planned) if math.isfinite(planned) else None,
            seconds=time.monotonic() - self._start,
        )


def _position(job: Job) -> tuple[int, float]:
    """Step and planned steps of a run that is going; -1 before it records."""
    planned = math.nan if job.steps is None else float(job.steps)
    for folder in announced(job.path / ANNOUNCED_FILE):
        try:
            trace = Trace.open(folder)
            steps = trace.steps["step"]
        except TraceError:  # nothing there yet
            return 0, planned
        told = trace.settings.get("max_steps")
        if job.steps is None and isinstance(told, int) and told > 0:
            planned = float(told)
        return int(steps.max(initial=0)), planned
    return -1, planned
