"""A registered plan -> runs -> looks -> verdict.

All arms of a seed run before the next seed, so that looks come early: the seeds up to the first
look at once, then those up to the next look, until the verdict is settled. Everything that is known
is on disk at any moment; whoever interrupts an experiment takes it up by the same command.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from flatline.errors import ConfigError
from flatline.experiment.comparable import Ended, refuse_incomparable
from flatline.experiment.evidence import Judged, Probes, judge, matched_seeds
from flatline.experiment.local import Executor
from flatline.experiment.outcome import Outcome, read_outcome
from flatline.experiment.plan import Arm, Plan, Role
from flatline.experiment.progress import Meter, Progress
from flatline.experiment.registration import register
from flatline.experiment.result import Look, Result, Run, failed_run, finished_run, read_looks
from flatline.experiment.runs import Job, job_of, unwritable
from flatline.signals import terminated_like_interrupted

OnProgress = Callable[[Progress], None]
GoOn = Callable[[int], bool]
"""Whether the runs up to a look, at so many matched seeds, are to be made."""


def conduct(
    plan: Plan,
    folder: Path,
    runs: Path,
    executor: Executor,
    on_progress: OnProgress = lambda _: None,
    *,
    probes: Probes | None = None,
    go_on: GoOn = lambda _: True,
) -> Result:
    """Register the plan in `folder`, carry it out, and keep what it came to there.

    A finished run in `runs` is never run again, whichever experiment made it; a crashed one is.
    `probes` are for a mechanism that the runs themselves may not show. `go_on` is asked before the
    runs up to each look, and may end it where the evidence stands.
    """
    conductor = Conductor(register(plan, folder), folder, runs, executor, on_progress, probes)
    with terminated_like_interrupted():
        return conductor.carry_out(go_on)


def observe(
    arm: Arm,
    seeds: Sequence[int],
    runs: Path,
    executor: Executor,
    on_progress: OnProgress = lambda _: None,
) -> dict[int, Outcome]:
    """Run one arm alone: enough to see whether a mechanism is there at all."""
    observer = _Observer(arm, seeds, runs, on_progress)
    with terminated_like_interrupted():
        if observer.missing:
            executor.execute(observer.missing, observer.done, observer.tell)
    if not observer.finished:
        raise _nothing_finished(arm.name, observer.failed)
    return observer.finished


class _Observer:
    """The runs of one arm while they are made."""

    def __init__(self, arm: Arm, seeds: Sequence[int], runs: Path, on_progress: OnProgress) -> None:
        jobs = {seed: job_of(arm, seed, runs) for seed in seeds}
        read = {seed: read_outcome(job.path) for seed, job in jobs.items()}
        self.finished = {seed: one for seed, one in read.items() if one is not None}
        self.failed: dict[int, str] = {}
        self.missing = [job for seed, job in jobs.items() if seed not in self.finished]
        self._going = {job.seed: job for job in self.missing}
        self._arm, self._on_progress = arm.name, on_progress
        self._meter = Meter({arm.name: seeds})

    def done(self, job: Job, failure: str | None) -> None:
        self._going.pop(job.seed, None)
        outcome = read_outcome(job.path)
        if outcome is not None:
            self.finished[job.seed] = outcome
        else:
            self.failed[job.seed] = failure or "It left no outcome."
        self.tell()

    def tell(self) -> None:
        finished = {(self._arm, seed): one for seed, one in self.finished.items()}
        for progress in self._meter.read(finished, self._going.values()):
            self._on_progress(progress)


class Conductor:
    """An experiment while it is carried out."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        runs: Path,
        executor: Executor,
        on_progress: OnProgress,
        probes: Probes | None,
    ) -> None:
        self._ended: dict[tuple[str, int], Ended] = {}
        self.failed: dict[tuple[str, int], str] = {}
        """What went wrong; tried again by the next invocation, not by this one."""
        self._plan, self._folder, self._runs = plan, folder, runs
        self._executor, self._on_progress, self._probes = executor, on_progress, probes
        self._going: dict[tuple[str, int], Job] = {}
        self._meter = Meter({arm.name: plan.seeds_of(arm) for arm in plan.arms})
        for arm in plan.arms:
            for seed in plan.seeds_of(arm):
                self._take_up(arm, seed)
        self._looks = self._earlier_looks()

    @property
    def finished(self) -> dict[tuple[str, int], Outcome]:
        """By arm and seed."""
        return {key: one.outcome for key, one in self._ended.items()}

    def carry_out(self, go_on: GoOn) -> Result:
        """Seeds up to the next look, look, and so on until it is settled."""
        for count in self._plan.looks:
            if self._is_settled() or not go_on(count):
                break
            self.run(self._wanted(count))
            self._look(count)
        result = self._result()
        self._save(result)
        return result

    def run(self, wanted: Iterable[tuple[Arm, int]]) -> None:
        """Run what has neither finished nor failed; no finished run of an arm is an error."""
        missing = [
            job_of(arm, seed, self._runs)
            for arm, seed in wanted
            if (arm.name, seed) not in self.finished and (arm.name, seed) not in self.failed
        ]
        self._going = {(job.arm, job.seed): job for job in missing}
        self._tell()
        if missing:
            self._executor.execute(missing, self._done, self._tell)
        self._going = {}
        self._refuse_dead_arms()

    def _wanted(self, count: int) -> Iterator[tuple[Arm, int]]:
        """Seed by seed; the negative controls belong to the first seeds."""
        first = count == self._plan.looks[0]
        last = max((*self._plan.negative_seeds, count - 1)) if first else count - 1
        for seed in range(last + 1):
            for arm in self._plan.arms:
                negative = arm.role is Role.NEGATIVE
                if seed in self._plan.seeds_of(arm) and (first if negative else seed < count):
                    yield arm, seed

    def _done(self, job: Job, failure: str | None) -> None:
        key = (job.arm, job.seed)
        self._going.pop(key, None)
        if failure is not None:
            self.failed[key] = failure
        else:
            self._take_up(next(arm for arm in self._plan.arms if arm.name == job.arm), job.seed)
        self._save(self._result())
        self._tell()

    def _take_up(self, arm: Arm, seed: int) -> None:
        """Count a run, if it has finished and can be compared with the others."""
        job = job_of(arm, seed, self._runs)
        outcome = read_outcome(job.path)
        if outcome is not None:
            one = Ended(job, outcome)
            refuse_incomparable(one, self._ended.values(), self._plan.outcome)
            self._ended[arm.name, seed] = one

    def _look(self, count: int) -> None:
        """At the largest registered number of seeds that there is and that was not looked at."""
        seeds = matched_seeds(self._plan, self.finished, below=count)
        last = self._looks[-1].seeds if self._looks else 0
        numbers = [number for number in self._plan.looks if last < number <= len(seeds)]
        if not numbers:
            return
        which = seeds[: numbers[-1]]
        judged = judge(self._plan, self.finished, which, self._probes)
        self._looks.append(
            Look(
                seeds=len(which),
                which=tuple(which),
                arm=judged.arm.name,
                effect=judged.verdict.effect,
                settled=judged.settled,
            )
        )
        self._save(self._result())

    def _earlier_looks(self) -> list[Look]:
        """Those taken before an interruption, as long as the runs they rest on are there."""
        looks = read_looks(self._folder, self._plan)
        there = set(self._matched())
        return looks if all(there.issuperset(look.which) for look in looks) else []

    def _matched(self) -> list[int]:
        return matched_seeds(self._plan, self.finished, below=self._plan.looks[-1])

    def _is_settled(self) -> bool:
        # Judged again: a look that an older flatline took may not be enough for this one.
        return bool(self._looks) and self._judged().settled

    def _judged(self) -> Judged:
        """By the last look; before the first one the effect settles nothing."""
        which = self._looks[-1].which if self._looks else self._matched()[: self._plan.looks[0] - 1]
        return judge(self._plan, self.finished, which, self._probes)

    def _result(self) -> Result:
        runs = [
            self._row(arm, seed) for arm in self._plan.arms for seed in self._plan.seeds_of(arm)
        ]
        return Result(
            plan=self._plan,
            runs=tuple(sorted((run for run in runs if run), key=lambda run: run.seed)),
            looks=tuple(self._looks),
            verdict=self._judged().verdict,
        )

    def _row(self, arm: Arm, seed: int) -> Run | None:
        key = (arm.name, seed)
        if key in self.failed:
            return failed_run(job_of(arm, seed, self._runs), self.failed[key])
        if key not in self._ended:
            return None
        return finished_run(*self._ended[key], self._plan)

    def _save(self, result: Result) -> None:
        try:
            result.save(self._folder)
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def _tell(self) -> None:
        for progress in self._meter.read(self.finished, self._going.values()):
            self._on_progress(progress)

    def _refuse_dead_arms(self) -> None:
        for arm in (self._plan.control, *self._plan.treated):
            mine = [seed for name, seed in self.failed if name == arm.name]
            if mine and not any(name == arm.name for name, _ in self.finished):
                raise _nothing_finished(arm.name, {s: self.failed[arm.name, s] for s in mine})


def _nothing_finished(arm: str, failed: Mapping[int, str]) -> ConfigError:
    first = min(failed)
    return ConfigError(
        f"No run of {arm!r} has finished; {len(failed)} failed. The one on seed {first}:\n"
        f"{failed[first]}\n"
        "Put that right and type the same command: finished runs are kept."
    )
