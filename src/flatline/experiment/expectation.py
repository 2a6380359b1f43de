"""What an experiment can find out and how long it takes at most, said before its first run."""

import math
from dataclasses import dataclass
from pathlib import Path

from flatline.experiment.outcome import OUTCOME_FILE
from flatline.experiment.plan import Plan, Role
from flatline.experiment.runs import job_of
from flatline.verdict import detectable, power

POWER = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a plan promises."""

    detectable: float
    """The least true effect that is validated in four of five experiments."""
    power: float
    """Chance that a true effect of `smallest_effect` is validated."""
    runs: int
    """Still to be made, at most."""
    seconds: float
    """For all of them, at most."""

    @property
    def text(self) -> str:
        """The same in a sentence."""
        found = (
            f"An effect of {self.detectable:.3f} is found in 4 of 5 such experiments."
            if math.isfinite(self.detectable)
            else "So few seeds cannot validate any of so many effects."
        )
        cost = f"At most {self.runs} runs, {_duration(self.seconds)}"
        return f"{found} {cost}; a clear effect stops earlier."


def expectation(
    plan: Plan, *, sd: float, seconds_per_run: float, jobs: int, runs: Path | None = None
) -> Expectation:
    """`sd` is that of the differences between seeds; finished runs in `runs` cost nothing."""
    batches = [_missing(plan, low, high, runs) for low, high in _batches(plan)]
    return Expectation(
        detectable=detectable(plan.rule, sd=sd, power=POWER),
        power=power(plan.rule, effect=plan.smallest_effect, sd=sd),
        runs=sum(batches),
        seconds=sum(math.ceil(count / jobs) for count in batches) * seconds_per_run,
    )


def _batches(plan: Plan) -> list[tuple[int, int]]:
    """Seeds that are run between one look and the next."""
    return list(zip((0, *plan.looks), plan.looks, strict=False))


def _missing(plan: Plan, low: int, high: int, runs: Path | None) -> int:
    """Runs on these seeds that are not finished; negative controls belong to the first."""
    wanted = [
        (arm, seed)
        for arm in plan.arms
        for seed in plan.seeds_of(arm)
        if (low == 0 if arm.role is Role.NEGATIVE else low <= seed < high)
    ]
    if runs is None:
        return len(wanted)
    return sum(not (job_of(arm, s, runs).path / OUTCOME_FILE).exists() for arm, s in wanted)


def _duration(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
