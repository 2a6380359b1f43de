"""From finished runs to a verdict: differences of matched seeds, mechanism, negative controls."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flatline.experiment.outcome import Outcome, Sight
from flatline.experiment.plan import Arm, Plan
from flatline.hypotheses.base import ALARMS, Level
from flatline.stats import Estimate, mean_of_units
from flatline.verdict import Mechanism, NegativeControl, Presence, Ruling, Verdict, decide

Runs = Mapping[tuple[str, int], Outcome]
"""Finished runs by the name of their arm and their seed."""
Probes = Mapping[str, Sight]
"""What checkups say about the hypothesis, by the name of the arm whose setup was looked at."""


class Judged(NamedTuple):
    """The treated arm that speaks for the experiment, and what it says."""

    arm: Arm
    verdict: Verdict
    settled: bool


def judge(plan: Plan, runs: Runs, seeds: Sequence[int], probes: Probes | None = None) -> Judged:
    """The verdict on these matched seeds.

    With several treated arms, each is held against the control at its share of the error rate. One
    that is validated speaks for all; otherwise the one with the largest effect.
    """
    judged = [(arm, _verdict(plan, runs, seeds, arm, probes)) for arm in plan.treated]
    settled = all(verdict.settled for _, verdict in judged)
    for arm, verdict in judged:
        if verdict.ruling is Ruling.VALIDATED:
            return Judged(arm, verdict, True)
    arm, verdict = max(judged, key=lambda one: one[1].effect.value) if seeds else judged[0]
    return Judged(arm, verdict, settled)


def matched_seeds(plan: Plan, runs: Runs, *, below: int) -> list[int]:
    """Seeds on which the control and every treated arm have finished."""
    arms = (plan.control, *plan.treated)
    return [seed for seed in range(below) if all((arm.name, seed) in runs for arm in arms)]


class Watched(NamedTuple):
    """What is known of the mechanism in one arm."""

    arm: str
    """Its name."""
    signs: Sequence[Sight]
    """What the hypothesis says about each of its runs."""
    probe: Sight | None = None
    """What a checkup of its setup says, if there was one."""

    @property
    def presence(self) -> Presence:
        """A probe sees the mechanism itself; where it sees nothing, runs may still show it."""
        if self.probe is not None and _presence(self.probe) is Presence.PRESENT:
            return Presence.PRESENT
        seen = _over_seeds(self.signs)
        if seen is Presence.UNKNOWN and self.probe is not None:
            return _presence(self.probe)
        return seen

    @property
    def direct(self) -> bool:
        """Whether that is seen itself, and not by its effects."""
        presence = self.presence
        if self.probe is not None and _presence(self.probe) is presence is not Presence.UNKNOWN:
            return True
        there = [sight for sight in self.signs if _presence(sight) is Presence.PRESENT]
        proven = all(one.proven or one.level == Level.FAULT for one in there)
        return presence is Presence.PRESENT and proven

    @property
    def text(self) -> str:
        """An example of what the arm as a whole says; the probe alone, if its runs say nothing."""
        fitting = [sight.text for sight in self.signs if _presence(sight) is self.presence]
        signs = fitting[:1] or [sight.text for sight in self.signs if self.probe is None][:1]
        return " ".join(signs + ([f"Checkup: {self.probe.text}"] if self.probe else []))

    @property
    def counted(self) -> str:
        there = sum(_presence(sight) is Presence.PRESENT for sight in self.signs)
        return f"{there} of {len(self.signs)} runs of `{self.arm}`"


def mechanism_of(
    plan: Plan, runs: Runs, treated: Arm | None = None, probes: Probes | None = None
) -> Mechanism:
    """Whether the runs of the control, and of a treated arm, show what the hypothesis claims."""
    arms = [plan.control, *([treated] if treated else [])]
    watched = [
        Watched(arm.name, _sights(plan, runs, arm), (probes or {}).get(arm.name)) for arm in arms
    ]
    return mechanism_in(plan.hypothesis, *watched)


def mechanism_in(hypothesis: str, control: Watched, treated: Watched | None = None) -> Mechanism:
    """The same from what is known of each arm."""
    counts = control.counted + (f" and {treated.counted}" if treated else "")
    counted = f"{hypothesis} fires in {counts}. " if control.signs else ""
    return Mechanism(
        control=control.presence,
        treated=treated.presence if treated else None,
        direct=control.direct,
        text=f"{counted}{control.text}".strip(),
    )


def negative_controls(plan: Plan, runs: Runs) -> list[NegativeControl]:
    """What the arms that cannot learn came to; those without a finished run say nothing."""
    found = []
    for arm in plan.negative:
        gain = _gain(plan, runs, arm)
        if gain is not None:
            # A policy that is pushed at random drifts; only a rise that matters is a bad sign.
            rose = gain.low > 0 and gain.value >= plan.smallest_effect
            found.append(NegativeControl(name=arm.name, gain=gain, clean=not rose))
    return found


def _verdict(
    plan: Plan, runs: Runs, seeds: Sequence[int], arm: Arm, probes: Probes | None
) -> Verdict:
    values = [
        (_value(plan, runs, arm, seed), _value(plan, runs, plan.control, seed)) for seed in seeds
    ]
    return decide(
        plan.hypothesis,
        [treated - control for treated, control in values],
        plan.rule,
        mechanism_of(plan, runs, arm, probes),
        negative_controls(plan, runs),
    )


def _value(plan: Plan, runs: Runs, arm: Arm, seed: int) -> float:
    return runs[arm.name, seed].counted(plan.outcome).value


def _gain(plan: Plan, runs: Runs, arm: Arm) -> Estimate | None:
    """Over seeds; the one run's own interval where there is one seed only."""
    found = [
        runs[arm.name, seed].counted(plan.outcome).gain
        for seed in plan.seeds_of(arm)
        if (arm.name, seed) in runs
    ]
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    return mean_of_units([gain.value for gain in found], unseen=plan.smallest_effect)


def _sights(plan: Plan, runs: Runs, arm: Arm) -> list[Sight]:
    finished = [runs[arm.name, s] for s in plan.seeds_of(arm) if (arm.name, s) in runs]
    return [run.findings[plan.hypothesis] for run in finished if plan.hypothesis in run.findings]


def _presence(sight: Sight) -> Presence:
    """A note is worth knowing and decides nothing."""
    if sight.level in ALARMS:
        return Presence.PRESENT
    return Presence.ABSENT if sight.level == Level.OK else Presence.UNKNOWN


def _over_seeds(sights: Sequence[Sight]) -> Presence:
    """What most of the runs that can tell say."""
    seen = [_presence(sight) for sight in sights]
    there, gone = seen.count(Presence.PRESENT), seen.count(Presence.ABSENT)
    if there == gone:
        return Presence.UNKNOWN
    return Presence.PRESENT if there > gone else Presence.ABSENT
