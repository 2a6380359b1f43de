"""Whether planted faults are named, by which look, and at which place."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.look_alikes import accepted
from bench.results import Look, Outcome
from bench.shares import EITHER, Ways, answer, asked, share
from flatline.bench.harm import Harm, Verdict


def sets_of(
    faulty: Sequence[Outcome], harm: Mapping[tuple[str, str], Harm]
) -> list[tuple[str, list[Outcome]]]:
    """Faults that hurt, as they are, milder and on another task; and all that were planted."""
    hurting = with_verdict(faulty, harm, Verdict.HURTS)
    uncorrected = with_verdict(faulty, harm, Verdict.HURTS, Verdict.UNCORRECTED)

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
        ("all that hurt", hurting),
        ("all that hurt, not corrected", uncorrected),
        ("all planted, harmless ones too", list(faulty)),
    ]
    return [(title, some) for title, some in sets if some]


def with_verdict(
    faulty: Sequence[Outcome], harm: Mapping[tuple[str, str], Harm], *verdicts: Verdict
) -> list[Outcome]:
    """The runs of faults that were judged so."""
    return [one for one in faulty if harm[one.cell.task, str(one.cell.fault)].verdict in verdicts]


def accuracy(
    title: str, some: Sequence[Outcome], ways: Ways, k: int, *, alike: bool
) -> dict[str, Any]:
    """How many of some runs have their fault among the first k alarms, look by look."""
    return {
        "set": title,
        "top": k,
        "alike": alike,
        "by_look": {
            name: share(runs, [named(one, looks(one), k, alike=alike) for one in runs])
            for name, looks in ways.items()
            if (runs := asked(some, looks))
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
    every = [one for one in faulty if (one.cell.task, one.cell.fault) == key]
    runs = sorted(every, key=lambda one: one.cell.seed)
    looked = asked(runs, answer)
    return {
        "task": key[0],
        "fault": key[1],
        "hypothesis": sorted({code for one in runs for code in one.cell.first}),
        "seeds": [one.cell.seed for one in runs],
        "verdict": harm.verdict.value,
        "p": harm.p,
        "corrected": harm.corrected,
        "lost": harm.lost.to_json(),
        "unit": harm.unit,
        "lost_by_seed": {str(seed): lost for seed, lost in harm.by_seed.items()},
        "by_look": {
            name: [_first(one, looks(one)) for one in runs]
            for name, looks in ways.items()
            if name != EITHER
        },
        "recall": share(looked, [named(one, answer(one), 1) for one in looked]),
    }


def _first(one: Outcome, looks: Sequence[Look]) -> dict[str, Any]:
    """Rank of the wanted hypothesis in one look, if it was taken, and what comes first instead."""
    alarms = looks[0].alarms if looks else ()
    ranks = [i for i, code in enumerate(alarms, 1) if code in one.cell.first]
    return {
        "seed": one.cell.seed,
        "taken": bool(looks),
        "rank": min(ranks, default=None),
        "first": next(iter(alarms), None),
    }
