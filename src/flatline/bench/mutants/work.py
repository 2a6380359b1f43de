"""Several studies at once: every process has something to do until the last mutant of the last."""

import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flatline.bench.mutants import nursery, trial
from flatline.bench.mutants.difference import Effect, difference
from flatline.bench.mutants.draw import in_turn
from flatline.bench.mutants.heard import Heard, opened
from flatline.bench.mutants.planting import Ground
from flatline.bench.mutants.sites import Mutation
from flatline.bench.mutants.study import MUTANTS_FILE, SEEDS_FILE, UNCHANGED, Row, Study, named
from flatline.bench.mutants.trial import Setup
from flatline.bench.versions import source_digest
from flatline.errors import ConfigError

PATIENCE, LEAST_PATIENCE = 10.0, 60.0
"""A mutant hangs after so many times the seconds of a run without a change, and not before so many
seconds."""
LOOKED_AT = (Effect.CHANGES, Effect.SCALE, Effect.ROUNDING)
"""What stops or hangs needs no checkup: the user knows. Of `UNCHANGED` one in some has one."""
TRAINS_THE_SAME = (*UNCHANGED, Effect.ROUNDING)
"""An alarm on these may be right all the same, and is looked at once more before it counts."""
ONCE_MORE = ("elsewhere", "later")

OnDone = Callable[[Row], None]


class _Job(NamedTuple):
    study: Study
    what: str
    mutation: Mutation | None = None
    seed: int = 0


class _Known(NamedTuple):
    """What is known of a study's script before anything is changed."""

    setup: Setup
    without: Heard
    waited: float
    lines: dict[str, list[int]]
    has_trainer: bool


def run(
    studies: Sequence[Study], *, jobs: int, minutes: float | None, on_done: OnDone
) -> tuple[int, int]:
    """Try what was not tried. Returns how many mutants and trainings are left for want of time."""
    until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    nursery.warm()
    for study in studies:
        study.begin(_commit())
    with tempfile.TemporaryDirectory() as scratch:
        bench = _Bench(studies, Path(scratch), jobs, until, on_done)
        return bench.try_mutants(), bench.train_seeds()


def planned(studies: Sequence[Study]) -> list[tuple[int, int]]:
    """Of each study, how many mutants would be tried next, and how many of its half are left. The
    scripts are run once, without a change, to see which lines they execute."""
    nursery.warm()
    asked = deque(_Job(study, "lines") for study in studies)
    found: dict[Study, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        done = nursery.each(
            asked,
            lambda job: trial.executed(_setup(job.study)),
            at_once=1,
            limit=lambda job: 3600.0,
            log=lambda job: Path(scratch) / "log.txt",
        )
        for job, row in done:
            grounds = _setup(job.study).grounds
            possible = {name: grounds[name].sites.at(at) for name, at in row["lines"].items()}
            every = replace(job.study, count=sum(map(len, possible.values())))
            both = (len(one.waiting(possible)) for one in (job.study, every))
            found[job.study] = (next(both), next(both))
    return [found[study] for study in studies]


class _Bench:
    def __init__(
        self, studies: Sequence[Study], scratch: Path, jobs: int, until: float, on_done: OnDone
    ) -> None:
        self._studies, self._scratch, self._jobs = studies, scratch, jobs
        self._until, self._on_done = until, on_done
        self._source = source_digest()
        self._setups = {study: _setup(study) for study in studies}
        self._known = dict(self._references())

    # -- without a change

    def _references(self) -> Iterator[tuple[Study, _Known]]:
        """Each script as it is, twice: what is not the same twice cannot show a change."""
        asked = deque(
            _Job(study, what, seed=k)
            for what, k in (("lines", 0), ("reference", 0), ("reference", 1))
            for study in self._studies
        )
        found: dict[_Job, Row] = {}
        for job, row in self._each(asked, limit=3600.0):
            if row.get("error"):
                raise ConfigError(
                    f"{job.study.script} does not train as it is: {row['error']} "
                    f"({row.get('at', 'no line known')}).\n"
                    "A change can only be judged against a training that works.\n"
                    f"Its output is in {job.study.log}."
                )
            found[job] = row
        for study in self._studies:
            first, second = (self._heard(study, k, found) for k in (0, 1))
            if difference(first, second).effect is not Effect.SAME:
                raise ConfigError(
                    f"{study.script} trains differently each time, with the same seed.\n"
                    "Then no change can be distinguished from chance.\n"
                    "Set its seeds (`seed=` of the trainer's arguments), and train on a CPU."
                )
            plain = found[_Job(study, "reference")]
            yield (
                study,
                _Known(
                    self._setups[study],
                    first,
                    plain["waited"],
                    found[_Job(study, "lines")]["lines"],
                    plain[trial.KIND] == trial.TRAINER,
                ),
            )

    def _heard(self, study: Study, k: int, found: dict[_Job, Row]) -> Heard:
        return opened(found[_Job(study, "reference", seed=k)], self._numbers(study, k))

    def _numbers(self, study: Study, k: int) -> Path:
        return self._scratch / f"{self._studies.index(study)}-{k}.npz"

    # -- with one

    def try_mutants(self) -> int:
        """What each does in a few steps, and a checkup where it needs one."""
        asked = deque(
            in_turn(
                [_Job(study, "compare", one) for one in study.waiting(_possible(known))]
                for study, known in self._known.items()
            )
        )
        slowest = max(known.waited for known in self._known.values())
        rows: dict[_Job, Row] = {}
        left = len(asked)
        for job, found in self._in_time(asked, limit=max(LEAST_PATIENCE, PATIENCE * slowest)):
            assert job.mutation is not None
            first = job._replace(what="compare", seed=0)
            if job.what == "compare":
                rows[first] = self._row(job, job.mutation, found)
                if _needs_checkup(job, rows[first]):
                    asked.appendleft(job._replace(what="checkup"))
                    continue
            if job.what == "checkup":
                rows[first]["checkup"] = found
            if job.what in ONCE_MORE and found.get("effect") == Effect.CHANGES:
                rows[first] |= self._elsewhere(job, found)
            elif (again := self._once_more(job, rows[first])) is not None:
                asked.appendleft(again)
                continue
            row = rows.pop(first)
            job.study.keep(MUTANTS_FILE, row)
            self._on_done(row)
            left -= 1
        return left

    def _once_more(self, job: _Job, row: Row) -> _Job | None:
        """Where an alarm on what trains the same is looked at next: in another study of the same
        code, then after more steps. None where there is no such alarm, or nothing left."""
        alarmed = row["effect"] in TRAINS_THE_SAME and row.get("checkup", {}).get("alarms")
        if not alarmed or job.what == "later":
            return None
        assert job.mutation is not None
        others = [
            at
            for at, one in enumerate(self._studies)
            if one is not job.study and job.mutation.module in one.modules
        ]
        begin = others.index(job.seed) + 1 if job.what == "elsewhere" else 0
        other = next(iter(others[begin:]), None)
        if other is None:
            return job._replace(what="later", seed=0)
        return job._replace(what="elsewhere", seed=other)

    def _elsewhere(self, job: _Job, found: Row) -> Row:
        later = job.what == "later"
        other = job.study if later else self._studies[job.seed]
        told: Row = {"script": other.script.name, "arguments": list(other.arguments)}
        told |= {"steps": self._steps_later(other)} if later else {}
        stage = found.get("stage")
        return {"effect": Effect.ELSEWHERE.value, "elsewhere": {**told, "stage": stage}}

    def _steps_later(self, study: Study) -> int:
        return trial.LATER[trial.TRAINER if self._known[study].has_trainer else trial.LOOP]

    def _row(self, job: _Job, mutation: Mutation, found: Row) -> Row:
        sites = self._setups[job.study].grounds[mutation.module].sites
        told = dict(found)
        if found.get("error") == nursery.TIMEOUT:
            told["effect"] = Effect.HANGS.value
        told.setdefault("effect", Effect.STOPS.value)  # the process died
        begins = {"statement": sites.statement(mutation), "source": self._source}
        return {"mutation": named(mutation), **told, **begins}

    def train_seeds(self) -> int:
        """Whole trainings, seed by seed: broken off, all mutants have about as many."""
        asked = deque(
            job
            for seed in range(max(study.seeds for study in self._studies))
            for job in in_turn(
                [_Job(study, "seed", one, seed) for one in study.untrained(seed)]
                for study in self._studies
                if seed < study.seeds and self._known[study].has_trainer
            )
        )
        left = len(asked)
        for job, found in self._in_time(asked, limit=20 * LEAST_PATIENCE):
            change = named(job.mutation) if job.mutation else None
            row = {"mutation": change, "seed": job.seed, **found, "source": self._source}
            job.study.keep(SEEDS_FILE, row)
            self._on_done(row)
            left -= 1
        return left

    def _each(self, asked: deque[_Job], limit: float) -> Iterator[tuple[_Job, Row]]:
        yield from nursery.each(
            asked,
            self._work,
            at_once=self._jobs,
            limit=lambda job: limit * (PATIENCE if job.what == "later" else 1),
            log=lambda job: job.study.log,
        )

    def _in_time(self, asked: deque[_Job], limit: float) -> Iterator[tuple[_Job, Row]]:
        """The same until time is up; a mutant that was begun is finished."""
        self._drop_if_late(asked)
        for done in self._each(asked, limit):
            yield done
            self._drop_if_late(asked)

    def _drop_if_late(self, asked: deque[_Job]) -> None:
        if time.monotonic() > self._until:
            begun = [one for one in asked if one.what not in ("compare", "seed")]
            asked.clear()
            asked.extend(begun)

    def _work(self, job: _Job) -> Row:
        setup = self._setups[job.study]
        if job.what == "lines":
            return trial.executed(setup)
        if job.what == "reference":
            return trial.reference(setup, self._numbers(job.study, job.seed))
        if job.what == "seed":
            trace = job.study.trace(job.mutation) if job.seed == 0 else None
            return trial.seeded(setup, job.mutation, job.seed, trace)
        if job.what == "checkup":
            return trial.checked(setup, job.mutation)
        assert job.mutation is not None
        if job.what == "later":
            return trial.compared_later(setup, job.mutation, self._steps_later(job.study))
        study = self._studies[job.seed] if job.what == "elsewhere" else job.study
        return trial.compared(self._setups[study], job.mutation, self._known[study].without)


def _possible(known: _Known) -> dict[str, list[Mutation]]:
    return {name: known.setup.grounds[name].sites.at(at) for name, at in known.lines.items()}


def _needs_checkup(job: _Job, row: Row) -> bool:
    assert job.mutation is not None
    if row["effect"] in UNCHANGED:
        return job.mutation.number % job.study.one_in == 0
    return row["effect"] in LOOKED_AT


def _setup(study: Study) -> Setup:
    script = str(study.script)
    grounds = {name: _ground(name) for name in study.modules}
    return Setup(
        script=grounds.get(script) or _ground(script),
        grounds=grounds,
        arguments=study.arguments,
        steps=study.steps,
    )


@cache
def _ground(module: str) -> Ground:
    return Ground(module)


def _commit() -> str:
    """Of the flatline that runs; its `source` digest stands in every row where git is absent."""
    here = Path(__file__).parent
    said: Any = subprocess.run(
        ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return str(said.stdout.strip() or "unknown")
