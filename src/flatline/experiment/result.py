"""What an experiment has come to so far: `result.json`, rewritten after every run and look."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from flatline.experiment.outcome import Outcome, estimate_from
from flatline.experiment.plan import Plan
from flatline.experiment.runs import Job
from flatline.files import json_in, write_atomically
from flatline.stats import Estimate
from flatline.verdict import Verdict

RESULT_FILE = "result.json"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an arm, as the result lists it."""

    arm: str
    """Name of the arm."""
    role: str
    """What the arm is there for."""
    seed: int
    """Matched across the arms."""
    folder: Path
    """Of the run."""
    trace: Path | None
    """Where it was recorded; None if it failed."""
    status: str
    """`finished` or `failed`."""
    value: float | None
    """The outcome; None if it failed."""
    before: float | None
    """The outcome at the start."""
    after: float | None
    """The outcome at the end."""
    seconds: float | None
    """Wall time."""
    level: str | None
    """What the hypothesis says about it."""
    text: str
    """The same in words, or why it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the effect, at a number of seeds that the plan has registered."""

    seeds: int
    """How many matched seeds."""
    which: tuple[int, ...]
    """Which ones."""
    arm: str
    """The treated arm that speaks for the experiment."""
    effect: Estimate
    """Treated minus control, with the interval that holds at every look."""
    settled: bool
    """Whether the experiment ends here."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "which": list(self.which), "effect": self.effect.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        effect = estimate_from(values["effect"])
        return cls(**{**values, "which": tuple(values["which"]), "effect": effect})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an experiment has come to."""

    plan: Plan
    """As it is registered."""
    runs: tuple[Run, ...]
    """Finished and failed ones, seed by seed."""
    looks: tuple[Look, ...]
    """In the order they were taken."""
    verdict: Verdict
    """Of the last look; before the first one it is inconclusive, unless the mechanism is absent."""

    @property
    def failed(self) -> tuple[Run, ...]:
        """Runs that the next invocation tries again."""
        return tuple(run for run in self.runs if run.status == "failed")

    def save(self, folder: Path) -> None:
        write_atomically(folder / RESULT_FILE, [json.dumps(self.to_json(folder), indent=2)])

    def to_json(self, folder: Path) -> dict[str, Any]:
        """The stable shape; folders are relative to that of the experiment."""
        return {
            "version": VERSION,
            "plan": self.plan.digest,
            "runs": [_run_to_json(run, folder) for run in self.runs],
            "looks": [look.to_json() for look in self.looks],
            "verdict": self.verdict.to_json(),
        }


def finished_run(job: Job, outcome: Outcome, plan: Plan) -> Run:
    """A run that can be counted."""
    measured = outcome.counted(plan.outcome)
    sight = outcome.findings.get(plan.hypothesis)
    return Run(
        arm=job.arm,
        role=job.role.value,
        seed=job.seed,
        folder=job.path,
        trace=job.path / outcome.trace,
        status="finished",
        value=measured.value,
        before=measured.before,
        after=measured.after,
        seconds=outcome.seconds,
        level=sight.level if sight else None,
        text=sight.text if sight else "",
    )


def failed_run(job: Job, why: str) -> Run:
    """A run that is tried again by the next invocation."""
    return Run(
        arm=job.arm,
        role=job.role.value,
        seed=job.seed,
        folder=job.path,
        trace=None,
        status="failed",
        value=None,
        before=None,
        after=None,
        seconds=None,
        level=None,
        text=why,
    )


def read_looks(folder: Path, plan: Plan) -> list[Look]:
    """The looks that were taken before an interruption; they count and are not taken again."""
    try:
        values = json_in(folder / RESULT_FILE)
        if (values["version"], values["plan"]) != (VERSION, plan.digest):
            return []
        return [Look.from_json(look) for look in values["looks"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _run_to_json(run: Run, folder: Path) -> dict[str, Any]:
    places = {"folder": run.folder, "trace": run.trace}
    return asdict(run) | {
        name: None if path is None else os.path.relpath(path, folder.resolve())
        for name, path in places.items()
    }
