"""Experiments: arms that differ in one factor, on matched seeds, by a plan made before the runs.

    plan = Plan(name="h09-mask", hypothesis="H09", factor="fault", arms=(...), ...)
    result = conduct(plan, Path("experiments/h09-mask"), Path("runs"), Local())
    result.verdict

`docs/design/experiments.md` says why it is done this way.
"""

from flatline.experiment.commands import arms_of
from flatline.experiment.conduct import conduct, observe
from flatline.experiment.evidence import mechanism_of, negative_controls
from flatline.experiment.expectation import Expectation, expectation
from flatline.experiment.local import Executor, Local
from flatline.experiment.negative import negative_arms
from flatline.experiment.outcome import Outcome, read_outcome
from flatline.experiment.plan import Arm, Plan, Role
from flatline.experiment.progress import Progress
from flatline.experiment.ray_cluster import RayExecutor
from flatline.experiment.registration import load_plan, register
from flatline.experiment.result import Look, Result, Run

__all__ = [
    "Arm",
    "Executor",
    "Expectation",
    "Local",
    "Look",
    "Outcome",
    "Plan",
    "Progress",
    "RayExecutor",
    "Result",
    "Role",
    "Run",
    "arms_of",
    "conduct",
    "expectation",
    "load_plan",
    "mechanism_of",
    "negative_arms",
    "negative_controls",
    "observe",
    "read_outcome",
    "register",
]
