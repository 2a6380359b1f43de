"""Arms must differ in one factor: an effect of two could be the work of either."""

from typing import TYPE_CHECKING, Any

from flatline.errors import ConfigError, needing

if TYPE_CHECKING:
    from flatline.experiment.plan import Arm

NOT_PART_OF_AN_ARM = ("seed", "output_dir", "run_name")
"""Fields of a config that every run sets for itself."""
FAULT = "fault"


def refuse_other_than_one_factor(factor: str, control: "Arm", treated: "Arm") -> None:
    """Raise unless the two arms differ in the factor, in nothing else, and in one part of it."""
    if (control.config is None) != (treated.config is None):
        raise ConfigError(
            f"{control.name!r} and {treated.name!r} differ in more than one factor: one is a "
            "config, the other a command.\nMake both of the same kind."
        )
    differing = _differing(control, treated)
    if not differing:
        raise ConfigError(
            f"{control.name!r} and {treated.name!r} are the same: there is nothing to compare.\n"
            f"Change {factor} in one of them."
        )
    if set(differing) != {factor}:
        told = ", ".join(f"{name} ({a!r} and {b!r})" for name, (a, b) in differing.items())
        raise ConfigError(
            f"{control.name!r} and {treated.name!r} should differ in {factor}, and differ in: "
            f"{told}.\nAn effect could then come from any of them.\n"
            "Change one factor at a time: make an experiment of each."
        )
    if factor == FAULT and control.config is not None:
        _refuse_several_faults(control, treated, *differing[FAULT])


def _differing(control: "Arm", treated: "Arm") -> dict[str, tuple[Any, Any]]:
    a, b = _factors(control), _factors(treated)
    return {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}


def _factors(arm: "Arm") -> dict[str, Any]:
    """What two arms may differ in, one by one."""
    if arm.config is not None:
        return arm.substance()
    return {"the command": arm.command, **arm.values}


def _refuse_several_faults(
    control: "Arm", treated: "Arm", before: str | None, after: str | None
) -> None:
    """All faults of one hypothesis may go together: they are what it claims."""
    with needing("A planted fault"):
        from flatline.faults import find  # brings torch

    a, b = find(before), find(after)
    apart = {(one.fault.name, one.strength) for one in a} ^ {(o.fault.name, o.strength) for o in b}
    names = {name for name, _ in apart}
    touched = {one.fault.hypothesis for one in (*a, *b) if one.fault.name in names}
    if not names:
        raise ConfigError(
            f"{control.name!r} and {treated.name!r} plant the same faults, written differently.\n"
            "There is nothing to compare. Take a fault out of one of them."
        )
    if len(touched) > 1:
        raise ConfigError(
            f"{control.name!r} and {treated.name!r} differ in several faults: "
            f"{', '.join(sorted(names))} (of {', '.join(sorted(touched))}).\n"
            "An effect could then come from any of them.\nTake out one at a time."
        )
