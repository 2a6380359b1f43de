"""Did a planted fault hurt? Its held-out reward against the healthy run of the same seed.

With three seeds or more the seeds are the units. With fewer nothing can be said about other seeds:
then the problems are, and the interval is about these very runs.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bench.plan import Kind
from bench.results import Outcome
from flatline.bench.harm import FEWEST_SEEDS, Harm, Verdict, corrected, p_value, student_p
from flatline.stats import UNKNOWN, Estimate, mean_of_units, paired_difference


def harm_of(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], Harm]:
    """(task, fault) -> what it cost."""
    healthy = {one.cell.name: one for one in outcomes if one.cell.kind is Kind.REFERENCE}
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        if one.cell.kind is Kind.FAULT:
            groups[one.cell.task, str(one.cell.fault)].append(one)
    return corrected({key: _harm(group, healthy) for key, group in groups.items()})


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
    return p_value(to_none / to_end, lost.n)
