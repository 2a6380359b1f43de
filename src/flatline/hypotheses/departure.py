"""A stage of the trainer's step that is not the specified one: what these hypotheses share.

The catalogue explains: where one of its hypotheses accounts for the departure and fires, that is
the cause and the stage its consequence. Where none does, the stage is the cause, and what looks
like a high learning rate or an exploding KL is a consequence of it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS, Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.groups import unless_batch_alarms
from flatline.hypotheses.recorded_steps import LOOKS, first_departing
from flatline.live.stage_found import StageFound
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

CODES = {
    "prompts": "H49",
    "completions": "H50",
    "mask": "H51",
    "rewards": "H52",
    "advantages": "H53",
    "log-probs": "H54",
    "ratio and KL": "H55",
    "loss": "H56",
    "gradient": "H57",
    "update": "H58",
    "delivery": "H59",
}
"""By stage, in the order in which a step makes them. Rows are H33's."""
OF_A_BATCH = ("mask", "rewards", "advantages")
"""Stages that the rollouts of one batch show without a step."""
LOOK_ALIKES = (
    "H03",
    "H04",
    "H08",
    "H20",
    "H22",
    "H24",
    "H26",
    "H27",
    "H28",
    "H29",
    "H30",
    "H31",
    "H32",
    "H41",
    "H48",
)
"""What a step that departs often looks like from outside, and in its log."""


class Departure(Hypothesis):
    """One stage. `named_by` are the hypotheses of the catalogue that account for its departure."""

    stage = ""
    named_by: tuple[str, ...] = ()

    def probe(self, subject: "Subject") -> Finding:
        """Is this stage of a real step the specified one?"""
        stages = subject.departures()
        first = next((stage for stage, one in stages.items() if one.departs), None)
        found = stages[self.stage]
        told = self._told(found, first)
        return with_lines(told, self.stage, subject) if first == self.stage else told

    def _told(self, found: StageFound, first: str | None) -> Finding:
        """What was found, as a finding; `first` is the first stage that departs."""
        if found.departs is None and found.added:
            return self.found(Level.NOTE, found.text)
        if found.departs is None:
            return self.found(Level.UNKNOWN, f"Could not be tested. {found.text}")
        if not found.departs:
            # A stage is told from tensors that were compared; over none it is unknown.
            return self.found(Level.OK, found.text, measured=found.measured, looked_at=1)
        alarm = self.found(
            Level.SUSPECT if found.by_chance else Level.FAULT,
            found.text,
            measured=found.measured,
            expected=found.expected,
            evidence=[Evidence.placed(example) for example in found.examples],
            fix=found.fix,
            headline=found.headline,
        )
        accounted = self.named_by if found.direct else ()
        follows = self._follows(first == self.stage)
        return replace(alarm, explains=(*follows, *accounted, *found.explains))

    def _follows(self, first: bool) -> tuple[str, ...]:
        """The stages after it; of the first that departs also its look-alikes."""
        codes = list(CODES.values())
        alike = [code for code in LOOK_ALIKES if first and code not in self.named_by]
        return (*codes[codes.index(self.id) + 1 :], *alike)


class DepartureAlong(Departure):
    """A stage that recorded steps show as well (`flatline.hypotheses.recorded_steps`)."""

    def sign(self, trace: Trace) -> Finding:
        """Is this stage of every recorded step the specified one?"""
        return self._told(LOOKS[self.stage](trace), first_departing(trace))

    def probe(self, subject: "Subject") -> Finding:
        """Also of the whole first batch, where a few rows of a step show nothing: what mixes groups
        is right where there is one."""
        seen = super().probe(subject)
        whole = seen.level is Level.OK and self.stage in OF_A_BATCH
        return unless_batch_alarms(seen, self.sign, subject.trace) if whole else seen


def with_lines(alarm: Finding, stage: str, subject: "Subject") -> Finding:
    """With the lines that may have made the stage depart; what hinders looking for them is said."""
    try:
        found = subject.departures()[stage]
        made = found.departs and not found.given
        return replace(alarm, where=subject.lines_of(found)) if made else alarm
    except NotRecorded:
        return alarm
    except Exception as error:
        why = Evidence(text=f"The line that caused it could not be searched for: {error}.")
        return replace(alarm, evidence=(*alarm.evidence, why))


def placed(
    findings: Sequence[Finding], hypotheses: Sequence[Hypothesis], subject: "Subject"
) -> list[Finding]:
    """The same; the first alarm, where no line is known of it, with those of what it explains, or
    those that make the first stage whose departure it accounts for (the user's own, where that
    stage does not depart)."""
    first = findings[0] if findings else None
    if first is None or first.level not in ALARMS or first.where:
        return list(findings)
    follow = (one for one in findings if one.hypothesis in first.explains and one.level in ALARMS)
    known = next((one.where for one in follow if one.where), ())
    if known:
        return [replace(first, where=known), *findings[1:]]
    stages = [one for one in hypotheses if isinstance(one, Departure)]
    for stage in (one.stage for one in stages if first.hypothesis in one.named_by):
        with suppress(Exception):
            # A stage that is as specified is made rightly: what is wrong is what it was given.
            right = subject.departures()[stage].departs is False
            lines = subject.lines_of(StageFound(stage=stage, departs=True, text=first.text))
            where = tuple(one for one in lines if one.own or not right)
            return [replace(first, where=where), *findings[1:]]
    return list(findings)


def named_by_the_catalogue(
    findings: Sequence[Finding], hypotheses: Sequence[Hypothesis]
) -> list[Finding]:
    """The same findings; what accounts for a departure also explains it, and lies where the first
    stage that departs was made. A departure that was seen directly, and so explains it, is not its
    consequence."""
    departing = {one.hypothesis: one for one in findings if one.level in ALARMS}
    stages = [one for one in hypotheses if isinstance(one, Departure) and one.id in departing]
    where = next((departing[one.id].where for one in stages if departing[one.id].where), ())
    named = []
    for finding in findings:
        code = finding.hypothesis
        accounts = [one.id for one in stages if code in one.named_by]
        more = [stage for stage in accounts if code not in departing[stage].explains]
        if finding.level in ALARMS and more:
            explains = (*finding.explains, *more)
            finding = replace(finding, explains=explains, where=finding.where or where)
        direct = [stage for stage in accounts if stage not in more]
        kept = tuple(one for one in finding.explains if one not in direct)
        named.append(replace(finding, explains=kept))
    return named
