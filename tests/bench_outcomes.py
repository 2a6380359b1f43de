"""Builders of finished cells for tests of the benchmark's figures."""

from pathlib import Path

from bench.plan import Cell, Kind
from bench.results import SILENT, Look, Outcome
from flatline.hypotheses.base import Finding, Level

HYPOTHESIS = {"kl-sign": "H03", "parser-broken": "H39", "sampler-every-n": "H17"}


def alarm(code, level="suspect", **ranking):
    return Finding(hypothesis=code, name=code, level=Level(level), text="", **ranking)


def look(*alarms, unknown=0):
    """What was found, or suspicions by their codes."""
    found = [alarm(one) if isinstance(one, str) else one for one in alarms]
    return Look(
        findings=tuple(found),
        texts=tuple(f"{one.hypothesis} is seen" for one in found),
        asked=40,
        unknown=unknown,
        defects=(),
        seconds=10.0,
    )


def outcome(
    fault,
    *,
    kind=None,
    seed=0,
    checkup=(),
    diagnose=(),
    early=(),
    log=(),
    after=0.9,
    learnt=True,
    failure=None,
    folder=Path("nowhere"),
    untaken=(),
):
    """A cell of 40 steps; `early` are the alarms of the looks before the last."""
    codes = tuple(HYPOTHESIS[one.partition(":")[0]] for one in fault.split("+")) if fault else ()
    kind = kind or (Kind.FAULT if fault else Kind.REFERENCE)
    name = f"{fault or 'healthy'}-s{seed}"
    heldout = {
        "problems": ["a", "b", "c", "d"],
        "before": [0.5] * 4,
        "after": [after] * 4,
        "gain": {"value": after - 0.5, "low": 0.1 if learnt else -0.1, "high": 1.0, "n": 4},
    }
    return Outcome(
        cell=Cell(
            name=name,
            kind=kind,
            changes={"seed": seed, "max_steps": 40} | ({"fault": fault} if fault else {}),
            planted=tuple(one.partition(":")[0] for one in fault.split("+")) if fault else (),
            wanted=codes,
            first=codes,
        ),
        folder=folder,
        checkup=look(*checkup),
        diagnoses={10: look(*early), 40: look(*diagnose)},
        ablation={"log": look(*log), "rollouts": SILENT},
        seconds_until={10: 50.0, 40: 200.0},
        heldout=None if failure else heldout,
        failure=failure,
        versions={"python": "3"},
        untaken=frozenset(untaken),
    )
