"""Counts with their intervals, and what is counted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.cell import CHECKUP, DIAGNOSE
from bench.merged import merged
from bench.results import SILENT, Look, Outcome
from flatline.stats import cluster_mean

EITHER = "either"
"""Checkup or the diagnosis of the whole run, whichever is right: two guesses."""
ANSWER = "one answer"
"""Both of them as one ranked list: the single answer of a user who asks both."""

Answers = Callable[[Outcome], Sequence[Look]]
"""The looks of a run that count; none where they were not taken."""
Ways = dict[str, Answers]
"""Ways to ask flatline, by name."""


def columns(outcomes: Sequence[Outcome]) -> Ways:
    """Checkup, diagnose after so many steps, and both of them."""
    steps = sorted({step for one in outcomes for step in one.diagnoses})
    found: Ways = {CHECKUP: lambda one: one.before}
    found |= {f"diagnose {step}": _after(step) for step in steps}
    return found | {EITHER: both}


def both(one: Outcome) -> list[Look]:
    """Checkup and last diagnosis, of a run that was asked both."""
    return [] if one.untaken else [*one.before, *one.end]


def answer(one: Outcome) -> list[Look]:
    """The one list of a run that was asked both."""
    looks = both(one)
    if not looks:
        return []
    return [replace(SILENT, findings=merged(looks), asked=min(look.asked for look in looks))]


def asked(outcomes: Sequence[Outcome], looks: Answers) -> list[Outcome]:
    """The runs of which these looks were taken: a look that nobody took is no miss."""
    return [one for one in outcomes if looks(one)]


def _after(step: int) -> Answers:
    return lambda one: [one.diagnoses.get(step, SILENT)] if DIAGNOSE not in one.untaken else []


def share(outcomes: Sequence[Outcome], holds: Sequence[bool]) -> dict[str, Any]:
    """A count of faulty runs; all seeds and strengths of a fault are one unit of its interval."""
    values = [float(one) for one in holds]
    units = ["+".join(one.cell.planted) for one in outcomes]
    rate = cluster_mean(values, units) if values else None
    return {
        "count": int(sum(values)),
        "of": len(values),
        "low": rate.low if rate and rate.n > 1 else None,
        "high": rate.high if rate and rate.n > 1 else None,
        "faults": len(set(units)),
    }
