"""The arms of an experiment: the setup as it is, and one field of it changed.

A planted fault is always the first thing to take away: it is the whole of the suspected cause, and
all else of the setup stays.
"""

from dataclasses import replace
from typing import Any

from flatline.config import RunConfig
from flatline.hypotheses.base import Arms, Hypothesis
from flatline.tasks.base import ANSWER, COMBINED


def arms(
    hypothesis: Hypothesis,
    config: RunConfig,
    factor: str,
    value: Any,
    *,
    control: str,
    treated: str,
) -> Arms | None:
    """Arms that differ in one field, whose `value` is what it is without the suspected cause.

    None where a planted fault of another hypothesis sets the field back: the arms would be one.
    """
    change = {factor: value}
    if config.fault is not None and _planted(replace(config, **change), factor) != value:
        return None
    return Arms(
        factor=factor,
        control=control,
        treated=treated,
        change=change,
        mechanism=hypothesis.mechanism,
    )


def fault_taken_out(hypothesis: Hypothesis, config: RunConfig) -> Arms | None:
    """With and without the planted faults of a hypothesis, all of them; None where it has none."""
    if config.fault is None:
        return None
    from flatline.faults import belonging, without  # loads torch, which a trace can do without

    theirs = belonging(config.fault, hypothesis.id)
    if not theirs:
        return None
    return arms(
        hypothesis,
        config,
        "fault",
        without(config.fault, hypothesis.id),
        control=f"with {' and '.join(theirs)}",
        treated=f"without {' and '.join(theirs)}",
    )


def without_kl(hypothesis: Hypothesis, config: RunConfig) -> Arms | None:
    """The weight of the KL term in use against none."""
    planted = fault_taken_out(hypothesis, config)
    if planted is not None or config.kl_beta == 0:
        return planted
    return arms(
        hypothesis,
        config,
        "kl_beta",
        0.0,
        control=f"KL weight {config.kl_beta:g}",
        treated="KL weight 0",
    )


def answer_alone(hypothesis: Hypothesis, config: RunConfig) -> Arms | None:
    """The whole reward against its right-or-wrong part."""
    planted = fault_taken_out(hypothesis, config)
    if planted is not None or config.reward != COMBINED:
        return planted
    return arms(
        hypothesis,
        config,
        "reward",
        ANSWER,
        control="the whole reward",
        treated=f"`{ANSWER}` alone",
    )


def at_temperature_one(hypothesis: Hypothesis, config: RunConfig) -> Arms | None:
    """A low temperature against 1."""
    planted = fault_taken_out(hypothesis, config)
    if planted is not None or config.temperature >= 1:
        return planted
    return arms(
        hypothesis,
        config,
        "temperature",
        1.0,
        control=f"temperature {config.temperature:g}",
        treated="temperature 1",
    )


def longer_turns(hypothesis: Hypothesis, config: RunConfig) -> Arms | None:
    """The tokens of a turn against twice as many."""
    planted = fault_taken_out(hypothesis, config)
    if planted is not None:
        return planted
    turn = config.turn_tokens
    return arms(
        hypothesis,
        config,
        "max_new_tokens",
        2 * turn,
        control=f"turns of {turn} tokens",
        treated=f"turns of {2 * turn} tokens",
    )


def _planted(config: RunConfig, field: str) -> Any:
    """What a field is once the planted faults have changed the settings they change."""
    from flatline.faults import changed, find

    return getattr(changed(config, find(config.fault)), field)
