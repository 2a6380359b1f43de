"""Verdicts: each ruling, each confidence, and how often the whole rule errs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from flatline.errors import ConfigError
from flatline.stats import UNKNOWN, Estimate
from flatline.tails import binomial
from flatline.verdict import (
    Mechanism,
    NegativeControl,
    Presence,
    Rule,
    Ruling,
    decide,
    detectable,
    more_seeds,
    power,
)
from flatline.verdict.planning import ends_of

CLEAN = NegativeControl(name="learning-rate-0", gain=Estimate(0.0, -0.01, 0.01, 64), clean=True)
OPEN = NegativeControl(name="random-reward", gain=Estimate(0, -math.inf, math.inf, 1), clean=True)
DIRTY = NegativeControl(name="random-reward", gain=Estimate(0.09, 0.06, 0.12, 64), clean=False)
RISES = [0.30, 0.32, 0.36]
STAYS = [0.006, -0.004, 0.001]
SCATTERS = [0.13, 0.0, 0.05]


def mechanism(control="present", treated="absent", *, direct=True, text="87 tokens were hidden."):
    shown = None if treated is None else Presence(treated)
    return Mechanism(control=Presence(control), treated=shown, direct=direct, text=text)


FLIPS = mechanism()


def ruled(differences, seen=FLIPS, controls=(CLEAN,), rule=None):
    return decide("H09", differences, rule or Rule(), seen, controls)


ABSENT = mechanism("absent", None)
UNSEEN = mechanism("unknown", None)
HURTS = [-one for one in RISES]
BY_DIFFERENCES_AND_MECHANISM = [
    (RISES, FLIPS, "validated", True),
    (STAYS, FLIPS, "partial", True),
    ([0.020, 0.025, 0.030], FLIPS, "partial", True),  # certain, and too small to matter
    (HURTS, FLIPS, "partial", True),
    ([], ABSENT, "invalidated", True),
    (RISES, mechanism("absent", "absent"), "invalidated", True),  # something else did it
    (STAYS, UNSEEN, "invalidated", True),
    (STAYS, mechanism("unknown", "absent"), "invalidated", True),
    (STAYS, mechanism(treated=None), "invalidated", True),
    (STAYS, mechanism("present", "present"), "inconclusive", None),
    (STAYS, mechanism("unknown", "present"), "inconclusive", None),
    (RISES, mechanism(treated="present"), "inconclusive", True),
    (RISES, mechanism(treated="unknown"), "inconclusive", True),
    (RISES, mechanism("unknown", "absent"), "inconclusive", True),
    (SCATTERS, FLIPS, "inconclusive", False),
    (SCATTERS * 2, FLIPS, "inconclusive", True),  # the plan is spent
]


@pytest.mark.parametrize(("differences", "seen", "ruling", "settled"), BY_DIFFERENCES_AND_MECHANISM)
def test_a_ruling_follows_from_the_effect_and_from_what_became_of_the_mechanism(
    differences, seen, ruling, settled
):
    verdict = ruled(differences, seen)
    assert verdict.ruling == ruling
    assert settled is None or verdict.settled is settled
    if differences:
        assert verdict.effect.value == pytest.approx(np.mean(differences))
        return
    assert verdict.effect == UNKNOWN


@pytest.mark.parametrize("differences", [RISES, STAYS])
def test_a_negative_control_that_improves_takes_the_outcome_away(differences):
    verdict = ruled(differences, controls=(CLEAN, DIRTY))
    assert (verdict.ruling, verdict.settled) == (Ruling.INCONCLUSIVE, True)
    assert DIRTY.name in verdict.reason
    assert ruled(differences, ABSENT, (DIRTY,)).ruling is Ruling.INVALIDATED, "it needs no outcome"


@pytest.mark.parametrize(
    ("differences", "seen", "controls", "confidence"),
    [
        *((each, FLIPS, (CLEAN,), "high") for each in (RISES, STAYS)),
        *((each, FLIPS, (CLEAN, OPEN), "high") for each in (RISES, STAYS)),
        *((each, FLIPS, (), "medium") for each in (RISES, STAYS)),
        *((each, FLIPS, (OPEN,), "medium") for each in (RISES, STAYS)),
        *((each, mechanism(direct=False), (CLEAN,), "medium") for each in (RISES, STAYS)),
        *((each, mechanism(direct=False), (), "low") for each in (RISES, STAYS)),
        (RISES, mechanism("absent", "absent"), (CLEAN,), "low"),
        ([], ABSENT, (CLEAN,), "high"),
        ([], mechanism("absent", None, direct=False), (CLEAN,), "medium"),
        (STAYS, UNSEEN, (CLEAN,), "low"),
        (STAYS, mechanism(treated=None), (CLEAN,), "medium"),
    ],
)
def test_confidence_counts_what_stands_behind_a_verdict(differences, seen, controls, confidence):
    verdict = ruled(differences, seen, controls)
    assert verdict.ruling is not Ruling.INCONCLUSIVE
    assert verdict.confidence == confidence


BAD_RULES = {
    "smallest_effect": (0.0, math.nan, math.inf, 5e-324, 1e200),
    "alpha": (0.0, 1.0),
    "family": (0,),
    "looks": ((), (1, 2), (3, 3), (4, 3)),
}
IMPOSSIBLE = [
    *((lambda n=n, v=v: Rule(**{n: v}), n) for n, vs in BAD_RULES.items() for v in vs),
    *(
        (lambda bad=bad: ruled([0.1, bad, 0.1]), "matched seed number 2 is")
        for bad in (math.nan, math.inf, -math.inf, 1e101, 1e200, -1e308)
    ),
    *(
        (ask, "standard deviation between seeds")
        for sd in (0.0, -0.1, 5e-324, 1e200, math.nan, math.inf)
        for ask in (
            lambda sd=sd: power(Rule(), effect=0.1, sd=sd),
            lambda sd=sd: detectable(Rule(), sd=sd),
        )
    ),
    *(
        (lambda wanted=wanted: detectable(Rule(), sd=0.03, power=wanted), "between 0 and 1")
        for wanted in (0.0, 1.0, 80)
    ),
]


@pytest.mark.parametrize(("ask", "told"), IMPOSSIBLE)
def test_numbers_that_cannot_be_are_refused_by_their_name(ask, told):
    with pytest.raises(ConfigError, match=told):
        ask()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_nothing_is_said_before_the_first_look(n):
    verdict = ruled([0.5, 0.5001, 0.5][:n])
    assert (verdict.ruling, verdict.settled) == (Ruling.INCONCLUSIVE, False)
    assert verdict.reason.endswith("finished, and the next look is at 3.")


def test_nothing_is_said_between_two_looks():
    rule = Rule(looks=(3, 6))
    between = [*RISES, 0.33]
    assert not ruled(between, rule=rule).settled
    assert ruled(between).ruling is Ruling.VALIDATED


@pytest.mark.parametrize("value", [0.3, 0.06, 0.0, -0.3])
@pytest.mark.parametrize("n", [3, 5, 6])
def test_equal_differences_are_one_however_many_and_decide_nothing(value, n):
    verdict = ruled([value] * n)
    assert verdict.ruling is Ruling.INCONCLUSIVE
    assert verdict.effect.low < 0 and verdict.effect.high > 0.05
    assert "closer than seeds do, so they count as one" in verdict.reason
    assert verdict.would_change.startswith("Seeds and a treatment that change the run")


@pytest.mark.parametrize("mean", [0.06, 0.2])
@pytest.mark.parametrize("off", [2e-9, 6e-8, 1e-6])
def test_a_last_bit_does_not_turn_equal_differences_into_a_verdict(mean, off):
    equal, nearly = ruled([mean] * 3), ruled([mean, mean, mean + off])
    assert equal.ruling is nearly.ruling is Ruling.INCONCLUSIVE
    assert nearly.effect.low == pytest.approx(equal.effect.low, rel=1e-3)


@pytest.mark.parametrize(("family", "fewest"), [(1, 3), (3, 3), (4, 4), (12, 4), (13, 5)])
def test_more_tested_effects_need_more_seeds_however_clear_each_looks(family, fewest):
    rule = Rule(family=family, looks=(2, 3, 4, 5, 6))
    clear = [0.30, 0.32, 0.31, 0.30, 0.32, 0.31]
    for n in range(2, fewest):
        early = ruled(clear[:n], rule=rule)
        assert (early.ruling, early.settled) == (Ruling.INCONCLUSIVE, False)
        assert f"{fewest - n} more matched seed" in early.would_change
        assert f"{fewest} are the fewest that can carry" in early.would_change
        assert early.to_json()["effect"]["low"] is None
    assert ruled(clear, rule=rule).ruling is Ruling.VALIDATED


def test_a_single_seed_that_stands_apart_is_named():
    verdict = ruled([0.09, 0.11, 0.10, -0.5])
    assert verdict.ruling is Ruling.INCONCLUSIVE
    assert verdict.reason.endswith(
        "that hangs on matched seed number 4 (-0.500), without which it would be "
        "+0.100 [+0.059, +0.141]."
    )
    assert "hangs on" not in ruled(SCATTERS * 2).reason


@pytest.mark.parametrize("size", [1e-90, 1e-30, 1e30, 1e90])
def test_a_verdict_does_not_depend_on_the_unit_of_the_outcome(size):
    for differences in (RISES, STAYS, SCATTERS):
        scaled = ruled([size * one for one in differences], rule=Rule(smallest_effect=0.05 * size))
        assert scaled.ruling is ruled(differences).ruling
        assert len(scaled.reason) < 250


def test_seeds_beyond_the_plan_are_refused():
    with pytest.raises(ConfigError, match="7 matched seeds, but the plan ends at 6"):
        ruled([0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.2])


def test_more_seeds_like_these_do_decide():
    open_ = [0.12, 0.03, 0.06]
    assert more_seeds(open_, Rule()) == 3
    assert ruled(open_).would_change == "About 3 more matched seeds with results like these."
    assert ruled(open_ * 2).ruling is Ruling.VALIDATED


def test_a_hopeless_question_is_not_answered_with_a_number_of_seeds():
    hopeless = [0.5, -0.45, 0.06]
    assert more_seeds(hopeless, Rule()) is None
    assert "More than 30 further matched seeds" in ruled(hopeless).would_change


def test_more_seeds_counts_up_to_a_planned_look():
    assert more_seeds([], Rule()) == 3
    assert more_seeds([0.12, 0.03, 0.06], Rule(looks=(3, 12))) == 9
    assert more_seeds(RISES, Rule()) == 0


@pytest.mark.parametrize("differences", [[], [0.1], RISES, STAYS, SCATTERS, [-0.3, -0.31, -0.3]])
@pytest.mark.parametrize("control", list(Presence))
@pytest.mark.parametrize("treated", [None, *Presence])
@pytest.mark.parametrize("controls", [(), (DIRTY,)])
def test_reason_and_what_would_change_it_are_one_readable_sentence(
    differences, control, treated, controls
):
    verdict = ruled(
        differences, mechanism(control, treated, text=" Two\nlines. Two sentences. "), controls
    )
    for sentence in (verdict.reason, verdict.would_change):
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert sentence.endswith(".")
        assert ". " not in sentence and "\n" not in sentence and "  " not in sentence
        assert "inf" not in sentence and "nan" not in sentence


def test_the_json_of_a_verdict_is_stable():
    got = json.loads(json.dumps(ruled([], mechanism("absent", None), ()).to_json()))
    assert got == {
        "hypothesis": "H09",
        "verdict": "invalidated",
        "confidence": "high",
        "effect": {"value": None, "low": None, "high": None, "n": 0},
        "smallest_effect": 0.05,
        "reason": "The mechanism is absent in the control runs (87 tokens were hidden).",
        "would_change": "A run of this very setup that shows the mechanism: a longer one, or on "
        "other problems.",
        "seeds": 0,
        "alpha": 0.05,
        "mechanism": {
            "control": "absent",
            "treated": None,
            "direct": True,
            "text": "87 tokens were hidden.",
        },
    }


JOURNAL = Path(__file__).parent.parent / "examples" / "journal"
FOURTH_SEED_OF_H09 = 0.2059
"""Trained later than the others; see the notes of the hypothesis."""


def recorded(name):
    """Differences by seed of an experiment that was made, its rule, and what it came to."""
    kept = json.loads((JOURNAL / "experimental-results" / f"{name}.json").read_text())
    value = {(run["role"], run["seed"]): run["value"] for run in kept["result"]["runs"]}
    seeds = [seed for role, seed in sorted(value) if role == "treated"]
    plan = kept["plan"]
    rule = Rule(family=plan["family"], looks=tuple(plan["looks"]))
    return [value["treated", s] - value["control", s] for s in seeds], rule, kept["verdict"]


@pytest.mark.parametrize("name", ["h03-kl-divergence", "h10-template-drift", "h44-data-order"])
def test_the_verdicts_that_were_made_are_still_what_comes_out(name):
    differences, rule, verdict = recorded(name)
    again = ruled(differences, rule=rule)
    assert again.ruling == verdict["verdict"]
    assert again.effect.low == pytest.approx(verdict["effect"]["low"], abs=1e-6)


def test_the_verdict_on_h09_needs_its_fourth_seed():
    differences, rule, _ = recorded("h09-loss-mask-as-attention")
    assert (
        "4 are the fewest that can carry 4 tested effects"
        in ruled(differences, rule=rule).would_change
    )
    verdict = ruled([*differences, FOURTH_SEED_OF_H09], rule=rule)
    assert verdict.ruling is Ruling.VALIDATED
    notes = (JOURNAL / "hypotheses" / "h09-loss-mask-as-attention.md").read_text()
    assert f"{verdict.effect.value:+.3f} [{verdict.effect.low:+.3f}" in notes


def conclude(differences, rule):
    for look in rule.looks:
        verdict = ruled(differences[:look], rule=rule)
        if verdict.settled:
            break
    return verdict


def rulings(effect, sd, rule, investigations, seed=5):
    noise = np.random.default_rng(seed).normal(0, sd, (investigations, rule.looks[-1]))
    return [conclude(row, rule).ruling for row in (effect + noise).tolist()]


def at_most(count, n, rate):
    """So many may happen by chance at that rate: one such test in a million fails wrongly."""
    return binomial(count, n, rate) > 1e-6


def test_noise_is_validated_in_at_most_half_of_alpha_of_all_investigations():
    rule = Rule(smallest_effect=0.001)
    falsely = rulings(0.0, 0.05, rule, 1500).count(Ruling.VALIDATED)
    assert at_most(falsely, 1500, 0.025)
    assert falsely > 0


def test_the_bound_would_notice_looks_that_nobody_accounted_for():
    rng = np.random.default_rng(5)
    falsely = sum(
        any(
            ruled(row[:look], rule=Rule(smallest_effect=0.001, looks=(look,))).ruling
            is Ruling.VALIDATED
            for look in (3, 4, 5, 6)
        )
        for row in rng.normal(0, 0.05, (1500, 6)).tolist()
    )
    assert not at_most(falsely, 1500, 0.025)


def test_eight_hypotheses_on_one_control_arm_keep_the_error_rate_together():
    rule = Rule(smallest_effect=0.001, family=8)
    runs = np.random.default_rng(6).normal(0, 0.05, (200, 9, 6))
    falsely = sum(
        any(conclude(row, rule).ruling is Ruling.VALIDATED for row in (arms[1:] - arms[0]).tolist())
        for arms in runs
    )
    assert at_most(falsely, 200, 0.05)


def test_an_effect_that_matters_is_rarely_excluded():
    wrongly = rulings(0.05, 0.02, Rule(), 1500).count(Ruling.PARTIAL)
    assert at_most(wrongly, 1500, 0.025)


@pytest.mark.parametrize("sd", [0.03, 0.0])
@pytest.mark.parametrize("rule", [Rule(), Rule(family=5, looks=(3, 5, 9))])
def test_power_follows_the_same_rule_as_decide(rule, sd):
    rows = np.random.default_rng(7).normal(0.06, sd, (200, rule.looks[-1]))
    one_by_one = [conclude(row, rule) for row in rows.tolist()]
    ends = ends_of(rows, rule)
    assert ends.validated.tolist() == [one.ruling is Ruling.VALIDATED for one in one_by_one]
    assert ends.excluded.tolist() == [one.ruling is Ruling.PARTIAL for one in one_by_one]
    assert ends.seeds.tolist() == [one.effect.n for one in one_by_one]


def test_what_is_detectable_is_found_with_the_power_asked_for():
    rule = Rule()
    least = detectable(rule, sd=0.05)
    assert power(rule, effect=least, sd=0.05) == pytest.approx(0.8, abs=0.02)
    assert least > detectable(Rule(looks=(3, 4, 5, 6, 7, 8)), sd=0.05)
    assert least < detectable(Rule(family=8), sd=0.05)
    assert detectable(rule, sd=1e-6) == detectable(rule, sd=0.02)  # quieter seeds count as one
