"""The simulation behind docs/verdicts.md: how often verdicts err, case by case."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flatline.verdict import Mechanism, Presence, Ruling, decide
from flatline.verdict.planning import ends_of
from tests.quality.report import report

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))
import verdicts  # noqa: E402

FLIPS = Mechanism(control=Presence.PRESENT, treated=Presence.ABSENT, direct=True, text="simulated")


@pytest.mark.parametrize("case", verdicts.HELD, ids=lambda case: case.name)
def test_at_most_5_percent_of_investigations_without_an_effect_validate_anything(case):
    shares = [verdicts.falsely_validated(case, family, 20_000) for family in verdicts.FAMILIES]
    report(f"{case.name}: {', '.join(map(verdicts.percent, shares))}")
    assert max(share.value for share in shares) <= 0.05


@pytest.mark.parametrize("case", verdicts.HELD + verdicts.EXCLUDED, ids=lambda case: case.name)
def test_the_simulation_follows_decide(case):
    rule = case.rule(1)
    drawn = case.differences(np.random.default_rng(9), 200, 1)[:, 0]
    whole = drawn[np.isfinite(drawn).all(axis=1)]
    assert len(whole) > 20
    assert ends_of(whole, rule).validated.tolist() == [concluded(row, rule) for row in whole]


def concluded(row, rule):
    for look in rule.looks:
        verdict = decide("H09", row[:look].tolist(), rule, FLIPS)
        if verdict.settled:
            break
    return verdict.ruling is Ruling.VALIDATED
