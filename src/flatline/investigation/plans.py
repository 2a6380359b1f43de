"""The experiment that a hypothesis asks for, as a plan."""

from dataclasses import replace

from flatline.experiment import Arm, Plan, Role, arms_of
from flatline.experiment.negative import negative_arms
from flatline.experiment.plan import METRIC
from flatline.hypotheses.base import Arms, Hypothesis
from flatline.investigation.setup import Setup


def name_of(hypothesis: Hypothesis, setup: Setup) -> str:
    """Of the experiment about a hypothesis."""
    return setup.name or f"{hypothesis.id.lower()}-{hypothesis.name}"


def plan_for(hypothesis: Hypothesis, arms: Arms, setup: Setup, *, family: int) -> Plan:
    """The setup as it is against the setup without the suspected cause."""
    mended = replace(setup.config, **arms.change)
    return Plan(
        name=name_of(hypothesis, setup),
        hypothesis=hypothesis.id,
        question=f"Does the reward improve {_than(arms)}?",
        factor=arms.factor,
        outcome=setup.outcome,
        smallest_effect=setup.smallest_effect,
        alpha=setup.alpha,
        family=family,
        looks=setup.looks,
        mechanism=arms.mechanism,
        arms=(
            Arm(name=arms.control, role=Role.CONTROL, config=setup.config),
            Arm(name=arms.treated, role=Role.TREATED, config=mended),
            # A metric is not a reward: nothing says that it stays where it is.
            *(() if setup.outcome.startswith(METRIC) else negative_arms(mended)),
        ),
    )


def plan_for_command(hypothesis: Hypothesis, setup: Setup, command: str, choice: str) -> Plan:
    """Arms that are a command of the user, run with each value of one placeholder."""
    factor, arms = arms_of(command, choice)
    return Plan(
        name=name_of(hypothesis, setup),
        hypothesis=hypothesis.id,
        question=f"Does the reward improve with another {factor}?",
        factor=factor,
        outcome=setup.outcome,
        smallest_effect=setup.smallest_effect,
        alpha=setup.alpha,
        looks=setup.looks,
        mechanism=hypothesis.mechanism or f"What {hypothesis.id} sees in the trace is gone.",
        arms=arms,
    )


def _than(arms: Arms) -> str:
    """`without X` and `with X` read as they are; other names are put side by side."""
    if arms.treated.startswith("without "):
        return arms.treated
    return f"with {arms.treated} instead of {arms.control}"
