"""The figures of a benchmark, as plain data: `flatline bench report --json` prints them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.cell import CHECKUP, DIAGNOSE
from bench.false_alarms import alarmed, false_alarms, healthy_rows
from bench.harm import harm_of
from bench.look_alikes import ALIKE
from bench.looks import EVERYTHING, LOG, ROLLOUTS
from bench.plan import Kind
from bench.recall import accuracy, fault_row, named, sets_of, with_verdict
from bench.results import SILENT, Look, Outcome
from bench.setups import twin_of
from bench.shares import ANSWER, Answers, Ways, answer, asked, both, columns, share
from flatline.bench.harm import FALSE_DISCOVERIES, Harm, Verdict

IN_TOP = 4
"""Both faults of a pair must be among so many alarms."""


def score(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything that is reported, but for the peers."""
    harm, ways = harm_of(outcomes), columns(outcomes)
    lists = {ANSWER: answer, **ways}
    faulty = [one for one in outcomes if one.cell.kind is Kind.FAULT]
    hurting = with_verdict(faulty, harm, Verdict.HURTS)
    rows = [fault_row(key, faulty, lists, harm[key]) for key in sorted(harm)]
    return {
        "cells": dict(Counter(one.cell.kind.value for one in outcomes)),
        "versions": _versions(outcomes),
        "repeated": {
            one.cell.name: twin_of(one.cell.changes)
            for one in outcomes
            if one.cell.kind is Kind.REPEATED
        },
        "untaken": dict(Counter(name for one in outcomes for name in sorted(one.untaken))),
        "accuracy": [
            accuracy(title, some, lists, k, alike=alike)
            for title, some in sets_of(faulty, harm)
            for k, alike in ((1, False), (3, False), (1, True))
        ],
        "faults": rows,
        "missed": [row for row in rows if row["verdict"] == Verdict.HURTS and _missed(row)],
        "false_discoveries": FALSE_DISCOVERIES,
        "uncorrected": _listed(harm, Verdict.UNCORRECTED),
        "harmless": _listed(harm, Verdict.HARMLESS),
        "open": _listed(harm, Verdict.OPEN),
        "healthy": list(healthy_rows(outcomes, ways)),
        "false_alarms": false_alarms(outcomes),
        "silence": _silence(hurting, ways),
        "detection": _detection(hurting),
        "confusion": _confusion(hurting),
        "alike": {name: list(why) for name, why in ALIKE.items()},
        "pairs": _pairs(outcomes, lists),
        "ablation": _ablation(hurting, outcomes),
        "defects": _defects(outcomes),
        "failures": {one.cell.name: one.failure for one in outcomes if one.failure},
    }


def _missed(row: dict[str, Any]) -> bool:
    """Whether a run of the fault was looked at and does not have it named first."""
    return bool(row["recall"]["count"] < row["recall"]["of"])


def _versions(outcomes: Sequence[Outcome]) -> list[str]:
    """What the cells ran with; more than one line where they did not all run with the same."""
    found = Counter(
        ", ".join(f"{name} {number}" for name, number in one.versions.items()) or "not recorded"
        for one in outcomes
    )
    return [f"{text} ({count} cells)" for text, count in found.most_common()]


def _defects(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    """Hypothesis -> runs on which it failed by a mistake of its own."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in outcomes:
        for code in sorted({code for look in one.looks.values() for code in look.defects}):
            found[code].append(one.cell.name)
    return dict(sorted(found.items()))


def _listed(harm: dict[tuple[str, str], Harm], verdict: Verdict) -> list[dict[str, Any]]:
    return [
        {"task": task, "fault": fault, "lost": one.lost.to_json()}
        for (task, fault), one in sorted(harm.items())
        if one.verdict is verdict
    ]


# -- silence, time, confusion -----------------------------------------------------------------


def _silence(hurting: Sequence[Outcome], ways: Ways) -> dict[str, Any]:
    """Faulty runs about which nothing is said, and the share of hypotheses that cannot tell."""
    found = {}
    for name, looks in ways.items():
        runs = asked(hurting, looks)
        told = [look for one in runs for look in looks(one) if look.asked]
        silent = share(runs, [not any(x.alarms for x in looks(one)) for one in runs])
        unknown = sum(x.unknown for x in told) / max(1, sum(x.asked for x in told))
        found[name] = {**silent, "unknown": unknown}
    return found


def _detection(hurting: Sequence[Outcome]) -> dict[str, Any]:
    """After how many steps, and seconds, the fault is named first; 0 steps is the checkup."""
    times = [_detected(one) for one in asked(hurting, both)]
    steps = Counter("never" if at is None else str(at[0]) for at in times)
    seconds = [at[1] for at in times if at is not None and at[1] is not None]
    return {
        "steps": dict(steps),
        "seconds": {"median": median(seconds), "most": max(seconds)} if seconds else None,
    }


def _detected(one: Outcome) -> tuple[int, float | None] | None:
    if named(one, [one.checkup], 1):
        return 0, one.checkup.seconds
    for step, look in sorted(one.diagnoses.items()):
        if named(one, [look], 1):
            trained = one.seconds_until.get(step)
            return step, None if trained is None else trained + look.seconds
    return None


def _confusion(hurting: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Planted hypothesis -> what was named first, by both as one, checkup and last diagnosis."""
    codes = sorted({one.cell.first[-1] for one in hurting if one.cell.first})
    return [
        {
            "planted": code,
            **{
                name: dict(_firsts([one for one in hurting if one.cell.first[-1] == code], looks))
                for name, looks in _confused().items()
            },
        }
        for code in codes
    ]


def _confused() -> Ways:
    return {ANSWER: answer, CHECKUP: lambda one: one.before, DIAGNOSE: lambda one: one.end}


def _firsts(runs: Sequence[Outcome], looks: Answers) -> Counter[str]:
    found = asked(runs, looks)
    return Counter(next(iter(looks(one)[0].alarms), "nothing") for one in found)


# -- pairs and ablation -----------------------------------------------------------------------


def _pairs(outcomes: Sequence[Outcome], ways: Ways) -> dict[str, Any]:
    pairs = [one for one in outcomes if one.cell.kind is Kind.PAIR]
    return {
        "by_look": {
            name: share(runs, [any(_both(one, x) for x in looks(one)) for one in runs])
            for name, looks in ways.items()
            if (runs := asked(pairs, looks))
        },
        "rows": [
            {
                "cell": one.cell.name,
                "wanted": list(one.cell.wanted),
                CHECKUP: list(one.checkup.alarms[:IN_TOP]),
                "diagnose": list(one.last.alarms[:IN_TOP]),
                "both": any(_both(one, look) for look in answer(one)),
            }
            for one in pairs
        ],
    }


def _both(one: Outcome, look: Look) -> bool:
    return set(one.cell.wanted) <= set(look.alarms[:IN_TOP])


def _ablation(hurting: Sequence[Outcome], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The same runs with less to look at: what each kind of evidence adds."""
    held_out = [one for one in outcomes if one.cell.kind is Kind.HELD_OUT]
    hurting = asked(hurting, both)  # The same runs in every row.
    ways: Ways = {
        "the trainer's log alone": lambda one: [one.ablation.get(LOG, SILENT)],
        "and rollouts": lambda one: [one.ablation.get(ROLLOUTS, SILENT)],
        f"and tokens and weights ({EVERYTHING}: diagnose)": lambda one: one.end,
        "probes alone (checkup)": lambda one: one.before,
        "both, as one answer": answer,
        "both, either of the two": both,
    }
    return [
        {
            "evidence": name,
            "top": {
                k: share(hurting, [named(one, looks(one), k) for one in hurting]) for k in (1, 3)
            },
            "false_alarms": alarmed(held_out, looks),
        }
        for name, looks in ways.items()
    ]
