"""The arms of an experiment: the setup as it is, and one field of it changed.

A planted fault is always the first thing to take away: it is the whole of the suspected cause, and
all else of the setup stays.
"""

from dataclasses import replace
from typing import Any

from flatline.config import RunConfig
from flatline.hypotheses.base import Arms, Hypothesis


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


def _planted(config: RunConfig, field: str) -> Any:
    """What a field is once the planted faults have changed the settings they change."""
    from flatline.faults import changed, find

    return getattr(changed(config, find(config.fault)), field)
