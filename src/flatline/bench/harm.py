"""Did a planted fault hurt? Its held-out reward against the healthy run of the same seed.

With three seeds or more the seeds are the units. With fewer nothing can be said about other seeds:
then the problems are, and the interval is about these very runs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flatline.bench.plan import Kind
from flatline.bench.results import Outcome
from flatline.stats import UNKNOWN, Estimate, mean_of_units, paired_difference

FEWEST_SEEDS = 3
"""Student's interval of two seeds is thirteen standard errors wide: it says nothing."""


class Verdict(StrEnum):
    """Whether a fault hurt."""

    HURTS = "hurts"
    """Held-out reward was certainly lost, or training broke down."""
    HARMLESS = "not shown to hurt"
    """The interval of the loss holds 0."""
    OPEN = "nothing to compare with"
    """The healthy run of its seed is not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What one fault cost on one task, over its seeds."""

    verdict: Verdict
    """Whether it hurt."""
    lost: Estimate
    """Healthy minus faulty held-out reward."""
    unit: str
    """What `lost.n` counts: seeds or problems."""
    by_seed: Mapping[int, float]
    """What was lost with each seed."""


def harm_of(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], Harm]:
    """(task, fault) -> what it cost."""
    healthy = {one.cell.name: one for one in outcomes if one.cell.kind is Kind.REFERENCE}
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        if one.cell.fault:
            groups[one.cell.task, one.cell.fault].append(one)
    return {key: _harm(group, healthy) for key, group in groups.items()}


def _harm(group: Sequence[Outcome], healthy: Mapping[str, Outcome]) -> Harm:
    pairs = [
        (reference, one)
        for one in group
        if one.heldout and (reference := healthy.get(one.cell.reference)) and reference.heldout
    ]
    by_seed = {bad.cell.seed: (good.after or 0.0) - (bad.after or 0.0) for good, bad in pairs}
    lost, unit = _lost(pairs, list(by_seed.values()))
    verdict = Verdict.HARMLESS if pairs else Verdict.OPEN
    if lost.low > 0 or any(one.failure for one in group):
        verdict = Verdict.HURTS
    return Harm(verdict=verdict, lost=lost, unit=unit, by_seed=by_seed)


def _lost(
    pairs: Sequence[tuple[Outcome, Outcome]], by_seed: Sequence[float]
) -> tuple[Estimate, str]:
    if len(pairs) >= FEWEST_SEEDS:
        return mean_of_units(by_seed), "seeds"
    if not pairs:
        return UNKNOWN, "seeds"
    good, bad, problems = [], [], []
    for reference, one in pairs:
        assert reference.heldout and one.heldout
        good += reference.heldout["after"]
        bad += one.heldout["after"]
        problems += one.heldout["problems"]
    ceiling = max(1.0, *good, *bad)
    return paired_difference(bad, good, problems, bounds=(0.0, ceiling)), "problems"
