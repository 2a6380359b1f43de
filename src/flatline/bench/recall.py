"""Whether planted faults are named, by which look, and at which place."""

from collections.abc import Sequence
from typing import Any

from flatline.bench.alike import accepted
from flatline.bench.harm import Harm
from flatline.bench.results import Look, Outcome
from flatline.bench.shares import EITHER, Ways, share


def sets_of(
    faulty: Sequence[Outcome], hurting: Sequence[Outcome]
) -> list[tuple[str, list[Outcome]]]:
    """Faults that hurt, as they are, milder and on another task; and all that were planted."""

    def of(task: str, strength: bool) -> list[Outcome]:
        return [
            one
            for one in hurting
            if one.cell.task == task and (":" in str(one.cell.fault)) is strength
        ]

    tasks = sorted({one.cell.task for one in faulty} - {"musique"})
    sets = [
        ("faults that hurt", of("musique", False)),
        ("second strength, that hurt", of("musique", True)),
        *((f"on {task}, that hurt", of(task, False)) for task in tasks),
        ("all planted, harmless ones too", list(faulty)),
    ]
    return [(title, some) for title, some in sets if some]


def accuracy(
    title: str, some: Sequence[Outcome], ways: Ways, k: int, *, alike: bool
) -> dict[str, Any]:
    """How many of some runs have their fault among the first k alarms, look by look."""
    return {
        "set": title,
        "top": k,
        "alike": alike,
        "by_look": {
            name: share(some, [named(one, looks(one), k, alike=alike) for one in some])
            for name, looks in ways.items()
        },
    }


def named(one: Outcome, looks: Sequence[Look], k: int, *, alike: bool = False) -> bool:
    """Whether one of the looks has a wanted hypothesis among its first k alarms."""
    codes = accepted(one.cell) if alike else one.cell.first
    return any(look.names(codes, k) for look in looks)


def fault_row(
    key: tuple[str, str], faulty: Sequence[Outcome], ways: Ways, harm: Harm
) -> dict[str, Any]:
    """One fault on one task: what it cost, and its rank seed by seed."""
    runs = [one for one in faulty if (one.cell.task, one.cell.fault) == key]
    return {
        "task": key[0],
        "fault": key[1],
        "hypothesis": sorted({code for one in runs for code in one.cell.first}),
        "seeds": sorted(one.cell.seed for one in runs),
        "verdict": harm.verdict.value,
        "lost": harm.lost.to_json(),
        "unit": harm.unit,
        "by_look": {
            name: [_first(one, looks(one)) for one in runs]
            for name, looks in ways.items()
            if name != EITHER
        },
        "recall": share(runs, [named(one, [one.checkup, one.last], 1) for one in runs]),
    }


def _first(one: Outcome, looks: Sequence[Look]) -> dict[str, Any]:
    """Rank of the wanted hypothesis in one look, and what comes first instead."""
    alarms = looks[0].alarms
    ranks = [i for i, code in enumerate(alarms, 1) if code in one.cell.first]
    return {
        "seed": one.cell.seed,
        "rank": min(ranks, default=None),
        "first": next(iter(alarms), None),
    }
