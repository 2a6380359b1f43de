"""The experiment that a hypothesis asks for, as a plan."""

from dataclasses import replace

from flatline.errors import TooFewSeeds
from flatline.experiment import Arm, Plan, Role, arms_of
from flatline.experiment.negative import negative_arms
from flatline.experiment.plan import METRIC
from flatline.experiment.registration import PLAN_FILE
from flatline.hypotheses.base import Arms, Hypothesis
from flatline.investigation.setup import Setup
from flatline.verdict import Rule


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


def refuse_in_vain(plan: Plan, setup: Setup) -> None:
    """What is registered goes on: it was asked for. A new plan must be able to decide something."""
    registered = (setup.experiments / plan.name / PLAN_FILE).exists()
    if not (registered or setup.train_anyway):
        refuse_too_few_seeds(plan.rule, plan.hypothesis)


def refuse_too_few_seeds(rule: Rule, hypothesis: str = "anything") -> None:
    """Raises `TooFewSeeds` for a rule under which no effect ever has an interval."""
    seeds = rule.looks[-1]
    if seeds >= rule.fewest:
        return
    raise TooFewSeeds(
        f"--seeds {seeds} can neither validate {hypothesis} nor show that it does not matter: "
        f"{rule.fewest_in_words}, so the experiment is not begun.\n"
        f"Plan {rule.fewest} matched seeds or more (6 is usual, and a clear effect stops earlier); "
        "runs that have finished are kept and count. `--train-anyway` trains all the same.",
        needed=rule.fewest,
    )


def _than(arms: Arms) -> str:
    """`without X` and `with X` read as they are; other names are put side by side."""
    if arms.treated.startswith("without "):
        return arms.treated
    return f"with {arms.treated} instead of {arms.control}"
