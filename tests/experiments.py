"""Builders for tests of experiments: plans, outcomes, and an executor that starts no process."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from flatline.config import RunConfig
from flatline.experiment import Arm, Plan, Role
from flatline.experiment.outcome import OUTCOME_FILE, Measure, Outcome, Sight
from flatline.experiment.runs import Job
from flatline.stats import Estimate

CHILD = f"{sys.executable} -m tests.experiment_child"
COMMAND = f"{CHILD} --beta {{kl_beta}} --seed {{seed}} --out {{run_dir}}"


def config_plan(**changes: Any) -> Plan:
    """Two configs that differ in their KL weight."""
    arms = (
        Arm(name="beta 0.04", role=Role.CONTROL, config=RunConfig(kl_beta=0.04)),
        Arm(name="beta 0", role=Role.TREATED, config=RunConfig(kl_beta=0.0)),
    )
    return plan_of(arms, **changes)


def plan_of(arms: Sequence[Arm], **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "name": "h09-beta",
        "hypothesis": "H09",
        "question": "Is the KL weight the cause?",
        "factor": "kl_beta",
        "mechanism": "Prompt tokens are hidden in one arm only.",
        "arms": tuple(arms),
        "looks": (2, 3),
    }
    return Plan(**{**values, **changes})


def outcome_of(value: float, *, level: str = "ok", trace: str = ".", **changes: Any) -> Outcome:
    """A finished run that gained `value`."""
    gain = Estimate(value, value - 0.01, value + 0.01, 100)
    measured = Measure(value=value, before=0.4, after=0.4 + value, gain=gain)
    values: dict[str, Any] = {
        "seconds": 1.0,
        "steps": 6,
        "trace": trace,
        "problems_digest": "same",
        "outcomes": {"heldout_reward": measured, "reward": measured},
        "findings": {"H09": Sight(level=level, text="seen.", proven=False)},
    }
    return Outcome(**{**values, **changes})


class Pretended:
    """Ends every job at once with what `came_to` says: an outcome, or why it failed."""

    jobs = 2

    def __init__(self, came_to: Callable[[Job], Outcome | str]) -> None:
        self.came_to = came_to
        self.started: list[tuple[str, int]] = []

    def execute(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, str | None], None],
        on_tick: Callable[[], None],
    ) -> None:
        for job in jobs:
            self.started.append((job.arm, job.seed))
            found = self.came_to(job)
            if isinstance(found, str):
                on_done(job, found)
                continue
            job.path.mkdir(parents=True, exist_ok=True)
            (job.path / OUTCOME_FILE).write_text(json.dumps(found.to_json()))
            on_done(job, None)
