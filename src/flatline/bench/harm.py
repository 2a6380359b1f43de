"""Did a planted fault hurt? Its held-out reward against the healthy run of the same seed.

With three seeds or more the seeds are the units. With fewer nothing can be said about other seeds:
then the problems are, and the interval is about these very runs.

Of twenty faults that do nothing, one has an interval above 0 by chance. So the p-values of all
planted faults are corrected together (Benjamini-Hochberg): of those called hurtful, one in twenty
is expected not to be.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from scipy.special import stdtr
from scipy.stats import false_discovery_control

from flatline.bench.plan import Kind
from flatline.bench.results import Outcome
from flatline.stats import LEVEL, UNKNOWN, Estimate, mean_of_units, paired_difference, t_score

Key = TypeVar("Key")

FEWEST_SEEDS = 3
"""Student's interval of two seeds is thirteen standard errors wide: it says nothing."""
FALSE_DISCOVERIES = 1 - LEVEL
"""Share of the faults called hurtful that may be called so by chance."""


class Verdict(StrEnum):
    """Whether a fault hurt."""

    HURTS = "hurts"
    """Held-out reward was lost, certain after the correction, or training broke down."""
    UNCORRECTED = "hurts before correction"
    """Its own interval lies above 0, but among so many faults that may be chance."""
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
    p: float | None
    """Two-sided p-value of no loss at all; None where nothing was compared."""
    corrected: float | None = None
    """The same, corrected for the number of faults that were planted."""


def harm_of(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], Harm]:
    """(task, fault) -> what it cost."""
    healthy = {one.cell.name: one for one in outcomes if one.cell.kind is Kind.REFERENCE}
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        if one.cell.kind is Kind.FAULT:
            groups[one.cell.task, str(one.cell.fault)].append(one)
    return corrected({key: _harm(group, healthy) for key, group in groups.items()})


def corrected(found: dict[Key, Harm]) -> dict[Key, Harm]:
    """The same with the correction, which needs all of them."""
    tested = {key: one.p for key, one in found.items() if one.p is not None}
    if not tested:
        return found
    chances = dict(zip(tested, false_discovery_control(list(tested.values())), strict=True))
    return found | {key: _judged(found[key], float(p)) for key, p in chances.items()}


def _judged(harm: Harm, corrected: float) -> Harm:
    sure = harm.verdict is Verdict.UNCORRECTED and corrected <= FALSE_DISCOVERIES
    return replace(harm, corrected=corrected, verdict=Verdict.HURTS if sure else harm.verdict)


def _harm(group: Sequence[Outcome], healthy: Mapping[str, Outcome]) -> Harm:
    pairs = [
        (reference, one)
        for one in group
        if one.heldout and (reference := healthy.get(one.cell.reference)) and reference.heldout
    ]
    by_seed = {bad.cell.seed: (good.after or 0.0) - (bad.after or 0.0) for good, bad in pairs}
    lost, unit, p = _lost(pairs, list(by_seed.values()))
    verdict = Verdict.HARMLESS if pairs else Verdict.OPEN
    if lost.low > 0:
        verdict = Verdict.UNCORRECTED
    if any(one.failure for one in group):
        verdict = Verdict.HURTS
    return Harm(verdict=verdict, lost=lost, unit=unit, by_seed=by_seed, p=p)


def _lost(
    pairs: Sequence[tuple[Outcome, Outcome]], by_seed: Sequence[float]
) -> tuple[Estimate, str, float | None]:
    """What was lost, over which units, and the p-value of the same test."""
    if len(pairs) >= FEWEST_SEEDS:
        lost = mean_of_units(by_seed)
        return lost, "seeds", student_p(lost)
    if not pairs:
        return UNKNOWN, "seeds", None
    good, bad, problems = [], [], []
    for reference, one in pairs:
        assert reference.heldout and one.heldout
        good += reference.heldout["after"]
        bad += one.heldout["after"]
        problems += one.heldout["problems"]
    ceiling = max(1.0, *good, *bad)
    lost = paired_difference(bad, good, problems, bounds=(0.0, ceiling))
    return lost, "problems", _wilson_p(lost, ceiling)


def student_p(lost: Estimate) -> float:
    """The error level at which Student's interval would just reach 0."""
    half = lost.high - lost.value
    return _p_value(lost.value / half, lost.n) if half else 1.0


def _wilson_p(lost: Estimate, ceiling: float) -> float:
    """The error level at which Wilson's interval would just reach 0.

    Its end is as many standard errors from the mean as the level asks for, where the standard error
    is that of a share which lies at the end, in the range from -ceiling to ceiling.
    """
    nearer = lost.low if lost.value > 0 else lost.high
    if not math.isfinite(nearer):
        return 1.0
    mean, end, none = ((x + ceiling) / (2 * ceiling) for x in (lost.value, nearer, 0.0))
    to_end, to_none = ((mean - x) / math.sqrt(x * (1 - x)) for x in (end, none))
    return _p_value(to_none / to_end, lost.n)


def _p_value(widths: float, n: int) -> float:
    """Of a mean that is so many half widths of its interval away from 0."""
    return float(2 * stdtr(n - 1, -abs(widths) * t_score(n - 1, LEVEL)))
