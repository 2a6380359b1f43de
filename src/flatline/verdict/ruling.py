"""Which case the evidence is, and the two sentences that say why and what would change it."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from flatline.stats import Estimate, deviation
from flatline.verdict.criterion import MOST_SEEDS, Rule, alike, effect_of, more_seeds
from flatline.verdict.records import (
    Confidence,
    Mechanism,
    NegativeControl,
    Presence,
    Ruling,
    Verdict,
)

SURE_SEEDS = 3
"""Matched seeds that a verdict of high confidence needs."""
READABLE = 1e9
"""Larger numbers, and those that need ten digits, are written with a power of ten."""


def decide(
    hypothesis: str,
    differences: Sequence[float],
    rule: Rule,
    mechanism: Mechanism,
    controls: Sequence[NegativeControl] = (),
) -> Verdict:
    """The verdict on one hypothesis from one difference (treated - control) per matched seed."""
    rule.refuse(differences)
    effect = effect_of(differences, rule)
    case = _Case(hypothesis, differences, rule, effect, mechanism, controls)
    answer = _answer(case)
    return Verdict(
        hypothesis=hypothesis,
        ruling=answer.ruling,
        confidence=_confidence(case, answer.ruling),
        effect=effect,
        smallest_effect=rule.smallest_effect,
        alpha=rule.alpha,
        reason=answer.reason,
        would_change=answer.would_change,
        settled=answer.settled,
        mechanism=mechanism,
    )


class _Case(NamedTuple):
    """Everything a ruling depends on."""

    hypothesis: str
    differences: Sequence[float]
    rule: Rule
    effect: Estimate
    mechanism: Mechanism
    controls: Sequence[NegativeControl]

    @property
    def looked_at(self) -> bool:
        return self.effect.n in self.rule.looks

    @property
    def moved(self) -> bool:
        """The outcome certainly rose, and by enough to matter as far as one can tell."""
        enough = self.effect.value >= self.rule.smallest_effect
        return self.looked_at and self.effect.low > 0 and enough

    @property
    def excluded(self) -> bool:
        """An effect that matters is excluded."""
        return self.looked_at and self.effect.high < self.rule.smallest_effect

    @property
    def alike(self) -> bool:
        """The differences scatter less than those of seeds do."""
        if self.effect.n < 2:
            return False
        spread, mean = np.array(deviation(self.differences)), np.array(self.effect.value)
        return bool(alike(spread, mean, self.rule) > 0)

    @property
    def seen(self) -> str:
        return f"{self.number(self.effect)} over {self.effect.n} matched seeds"

    @property
    def least(self) -> str:
        return f"the {self.rule.smallest_effect:g} that matters"

    def number(self, estimate: Estimate) -> str:
        value, low, high = map(self.written, estimate[:3])
        return f"{value} [{low}, {high}]" if math.isfinite(estimate.low) else value

    def written(self, number: float) -> str:
        # As many digits as the smallest effect needs: an outcome need not be a reward.
        digits = max(3, 1 - math.floor(math.log10(self.rule.smallest_effect)))
        readable = abs(number) < READABLE and digits < 10
        return f"{number:+.{digits}f}" if readable else f"{number:+.3g}"


class _Answer(NamedTuple):
    ruling: Ruling
    settled: bool
    reason: str
    would_change: str


def _answer(case: _Case) -> _Answer:
    dirty = next((control for control in case.controls if not control.clean), None)
    if case.mechanism.control is Presence.ABSENT:
        return _absent(case)
    if dirty:
        return _untrustworthy(case, dirty)
    if not case.looked_at:
        return _too_early(case)
    if case.moved:
        return _caused(case) if case.mechanism.flips else _unexplained(case)
    if case.excluded:
        return _without_effect(case)
    return _open(case)


def _absent(case: _Case) -> _Answer:
    seen = " ".join(case.mechanism.text.split()).rstrip(".").replace(". ", "; ")
    reason = "The mechanism is absent in the control runs" + (f" ({seen})" if seen else "")
    if case.moved:
        reason += f"; the outcome moved by {case.seen} anyway, so something else did it"
    return _Answer(
        Ruling.INVALIDATED,
        True,
        f"{reason}.",
        "A run of this very setup that shows the mechanism: a longer one, or on other problems.",
    )


def _untrustworthy(case: _Case, control: NegativeControl) -> _Answer:
    return _Answer(
        Ruling.INCONCLUSIVE,
        True,
        f"The negative control {control.name} cannot learn and still gained "
        f"{case.number(control.gain)}: the outcome shows something other than learning.",
        "An outcome on which every negative control stays flat; look at the evaluation first.",
    )


def _too_early(case: _Case) -> _Answer:
    n = case.effect.n
    following = next(look for look in case.rule.looks if look > n)
    have = {0: "No matched seed has", 1: "1 matched seed has"}.get(n, f"{n} matched seeds have")
    return _Answer(
        Ruling.INCONCLUSIVE,
        False,
        f"{have} finished, and the next look is at {following}.",
        f"{_more(following - n)}, up to the look that was planned.",
    )


def _caused(case: _Case) -> _Answer:
    return _Answer(
        Ruling.VALIDATED,
        True,
        f"Taking {case.hypothesis} away moved the outcome by {case.seen}, at least {case.least}, "
        "and the mechanism went with it.",
        "The same gain in arms that keep the mechanism, new seeds whose interval reaches 0, or "
        f"treated runs that collapse: {case.effect.n} seeds without one leave room for that in up "
        f"to {_unseen_share(case.effect.n):.0%} of all runs.",
    )


def _unseen_share(seeds: int) -> float:
    """The largest share of runs that stays unseen in so many with a chance of 5 %."""
    return float(1 - 0.05 ** (1 / seeds))


def _unexplained(case: _Case) -> _Answer:
    if case.mechanism.treated is Presence.PRESENT:
        left = "is still there in the treated runs"
    else:
        left = f"could not be tested in the {_untold(case)} runs"
    return _Answer(
        Ruling.INCONCLUSIVE,
        True,
        f"The outcome moved by {case.seen}, but the mechanism {left}: the gain is real and its "
        "cause is not shown.",
        "Control runs that show the mechanism and treated runs that show it gone; more seeds "
        "would not help.",
    )


def _without_effect(case: _Case) -> _Answer:
    change = f"the outcome changes by {case.seen}, {_how_little(case)}"
    if case.mechanism.flips:
        return _Answer(
            Ruling.PARTIAL,
            True,
            f"The mechanism is there and goes when {case.hypothesis} is taken away, but {change}.",
            "The same experiment where nothing else holds the outcome down, or a new plan with a "
            "smaller `smallest_effect`.",
        )
    if case.mechanism.treated is Presence.PRESENT:
        return _Answer(
            Ruling.INCONCLUSIVE,
            True,
            f"The treated runs still show the mechanism, so {case.hypothesis} was never taken "
            f"away, and {change}.",
            "A treatment after which the mechanism is gone; more seeds would not help.",
        )
    return _Answer(
        Ruling.INVALIDATED,
        True,
        f"Taking {case.hypothesis} away does not help: {change}.",
        f"Runs that record the mechanism, which could not be tested in the {_untold(case)} runs.",
    )


def _how_little(case: _Case) -> str:
    if case.effect.high < 0:
        return "for the worse"
    if case.effect.low > 0:
        return f"less than {case.least}"
    return f"which excludes {case.least}"


def _untold(case: _Case) -> str:
    return "control" if case.mechanism.control is Presence.UNKNOWN else "treated"


def _open(case: _Case) -> _Answer:
    if case.alike:
        known = "the differences lie together closer than seeds do, so they count as one"
    elif case.effect.n < case.rule.fewest:
        # How many would decide is said once, by `_what_decides`.
        known = f"so few seeds cannot carry {case.rule.effects_in_words}"
    elif case.effect.low > 0:
        known = f"certainly above 0, but perhaps less than {case.least}"
    else:
        known = f"it may be 0, and it may be {case.least}"
    return _Answer(
        Ruling.INCONCLUSIVE,
        case.effect.n == case.rule.looks[-1],
        f"The effect is {case.seen}: {known}{_hangs_on(case)}.",
        _what_decides(case),
    )


def _hangs_on(case: _Case) -> str:
    """The one seed without which the effect would be certain: mostly a run that collapsed."""
    if case.effect.n <= SURE_SEEDS:
        return ""
    middle = median(case.differences)
    far = max(range(case.effect.n), key=lambda at: abs(case.differences[at] - middle))
    rest = [one for at, one in enumerate(case.differences) if at != far]
    without = effect_of(rest, case.rule)
    if without.low <= 0 and without.high >= case.rule.smallest_effect:
        return ""
    alone = f"matched seed number {far + 1} ({case.written(case.differences[far])})"
    return f"; that hangs on {alone}, without which it would be {case.number(without)}"


def _what_decides(case: _Case) -> str:
    if case.alike:
        return (
            "Seeds and a treatment that change the run (does the command pass both on?), or an "
            "outcome that can tell runs apart, such as one over more held-out problems."
        )
    further = more_seeds(case.differences, case.rule)
    if further is None:
        return (
            f"More than {MOST_SEEDS} further matched seeds; rather plan with a larger "
            "`smallest_effect`, longer runs or more held-out problems."
        )
    last = case.rule.looks[-1]
    new = "" if case.effect.n + further <= last else f", in a new plan: this one ends at {last}"
    bound = case.effect.n + further == case.rule.fewest
    why = f" ({case.rule.fewest_in_words})" if bound else ""
    return f"About {_more(further)} with results like these{why}{new}."


def _more(seeds: int) -> str:
    return "1 more matched seed" if seeds == 1 else f"{seeds} more matched seeds"


def _confidence(case: _Case, ruling: Ruling) -> Confidence:
    mechanism = case.mechanism
    if ruling is Ruling.INCONCLUSIVE:
        return Confidence.LOW
    if mechanism.control is Presence.ABSENT:
        if case.moved:
            return Confidence.LOW
        return Confidence.HIGH if mechanism.direct else Confidence.MEDIUM
    # An experiment that never showed the mechanism may never have touched it.
    if mechanism.control is Presence.UNKNOWN:
        return Confidence.LOW
    enough_seeds = case.effect.n >= SURE_SEEDS
    seen_to_go = mechanism.flips and mechanism.direct
    # A control that is not clean never gets here; one without an interval shows nothing.
    controlled = any(math.isfinite(control.gain.high) for control in case.controls)
    support = enough_seeds + seen_to_go + controlled
    return {3: Confidence.HIGH, 2: Confidence.MEDIUM}.get(support, Confidence.LOW)
