"""The answer of a report in the order in which a person reads it. Every renderer shows this.

First the cause in plain words, without codes; then what proves it, the line of code, what to do,
how the reward moves; then the other causes, what follows from them, and one line on what could not
be tested. The console, the page, the notebook, trackers and CI differ in markup alone.
"""

from dataclasses import dataclass
from typing import NamedTuple

from flatline.diagnosis.found import Found, explained_by
from flatline.diagnosis.lacking import next_step
from flatline.diagnosis.outcome import (
    Outcome,
    common_left,
    common_tested,
    next_of,
    outcome_of,
    troubles_of,
)
from flatline.hypotheses.base import Evidence, Finding, Level
from flatline.remarks.remark import Event
from flatline.text import shortened

LONGEST_EXAMPLE = 400
"""Characters of one example: models write without end."""


FEW = 3
"""Common causes that could not be tested, up to which each is said in the first sentence."""


class Line(NamedTuple):
    """Something said under a headline."""

    label: str
    """One word: proof, line, do, example, why, reward."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a reader is told, most important first."""

    headline: str
    """The cause in plain words; where none was found, what is known instead."""
    lines: tuple[Line, ...]
    """What belongs to it."""
    cause: Finding | None
    """The finding that the headline is about."""
    others: tuple[Finding, ...]
    """Other causes, most likely first."""
    symptoms: tuple[Finding, ...]
    """Alarms that a cause explains."""
    untested: str
    """How much could not be tested, and what would test most of it; empty where all was tested."""


def answer_of(report: Found) -> Answer:
    """The answer. Its lines are in the order of `Answer.lines`."""
    causes = report.causes
    explained = explained_by(report.findings)
    free = {cause.hypothesis for cause in causes}
    return Answer(
        headline=headline_of(report),
        lines=tuple(_lead(report)),
        cause=causes[0] if causes else None,
        others=tuple(causes[1:]),
        symptoms=tuple(
            one
            for one in report.alarms
            if one.hypothesis in explained and one.hypothesis not in free
        ),
        untested=untested_of(report),
    )


def headline_of(report: Found) -> str:
    """The first sentence of every answer."""
    if report.causes:
        return claim(report.causes[0])
    troubles = troubles_of(report)
    if troubles:
        return _unexplained(troubles[0], report.event)
    if outcome_of(report) is Outcome.HEALTHY:
        if report.pointers:
            return f"Your run learns, with one reservation: {_inside(report.pointers[0])}"
        if report.event is not None and report.event.certain:
            return f"Your run learns, with one event on the way. {report.event.text}"
        return _HEALTHY[report.trend is not None and report.trend.rises]
    if report.event is not None:
        return f"{report.event.text} This log does not show why."
    if report.pointers:
        return f"Possible, but not certain: {_inside(report.pointers[0])}"
    return _left_open(common_left(report))


def _left_open(left: list[str]) -> str:
    """Nothing was found, and some common causes could not be tested."""
    if len(left) > FEW:
        return "There is not enough here to name a cause or to call the run healthy."
    return f"Nothing wrong was found. Still open: whether {', and whether '.join(left)}."


_HEALTHY = {
    True: "Your run looks healthy: the reward rises.",
    False: "Your run looks healthy: no common cause of a flat reward is present.",
}


def _unexplained(trouble: Finding, event: Event | None) -> str:
    if trouble.name not in _BY_TREND:
        return f"{trouble.headline} {event.text}" if event is not None else trouble.headline
    if event is not None and event.certain:
        return f"{event.text} No cause that could be tested explains it."
    return f"{trouble.headline[:-1]}, and no cause that could be tested explains it."


def claim(finding: Finding) -> str:
    """The headline of an alarm, with how sure it is."""
    head = _headline(finding)
    return f"Suspected: {head}" if finding.level is Level.SUSPECT else head


def also(finding: Finding) -> str:
    """The headline of a further cause."""
    word = "Also" if finding.level is Level.FAULT else "Also suspected"
    return f"{word}: {_headline(finding)}"


def named(finding: Finding) -> str:
    """Code and name, for those who look it up."""
    return f"{finding.hypothesis} {finding.name}"


def _headline(finding: Finding) -> str:
    return finding.headline or f"{named(finding)}."


def _inside(finding: Finding) -> str:
    """The headline as the end of a sentence."""
    head = _headline(finding)
    return head[0].lower() + head[1:] if finding.headline else head


def lines_of(finding: Finding) -> list[Line]:
    """What a finding says under its headline."""
    healthy = f" Healthy: {finding.expected}." if finding.expected else ""
    lines = [
        Line("proof", f"{finding.text}{healthy}"),
        *(Line("line", str(one)) for one in finding.where),
        Line("do", finding.fix),
        *(Line("example", example_text(one)) for one in finding.evidence),
        Line("why", finding.meaning),
    ]
    return [line for line in lines if line.text]


def example_text(one: Evidence) -> str:
    """An example with its place in the run."""
    places = (("step", one.step), ("rollout", one.rollout))
    place = ", ".join(f"{name} {number}" for name, number in places if number is not None)
    text = shortened(one.text, limit=LONGEST_EXAMPLE)
    return f"{place}: {text}" if place else text


def untested_of(report: Found) -> str:
    """One line instead of one for each."""
    lacking = len(report.findings) - report.tested
    if not lacking:
        return ""
    step = next_step(report.findings)
    then = f" {step.do}: that would test up to {step.causes} of them." if step else ""
    return f"{lacking} of {len(report.findings)} causes could not be tested.{then}"


def summary_of(report: Found) -> str:
    """The answer as one paragraph, for a list, a notice or a chat."""
    parts = [headline_of(report)]
    if report.causes:
        first, *others = report.causes
        parts.append(f"{first.text} ({named(first)})")
        parts += [f"{also(one)} ({named(one)})" for one in others]
    for line in _lead(report):
        if line.label in _BESIDE_THE_CAUSE:
            parts.append(f"Next: {line.text}" if line.label == "next" else line.text)
    parts += [report.question] if report.question else []
    return " ".join(parts)


_BESIDE_THE_CAUSE = ("reward", "run", "event", "after", "cause", "note", "next")


def _lead(report: Found) -> list[Line]:
    """What stands under the headline."""
    lines = lines_of(report.causes[0]) if report.causes else []
    troubles = [one for one in troubles_of(report) if one.name not in _BY_TREND]
    lines += [Line("run", one.text) for one in troubles if one.text not in headline_of(report)]
    if report.trend is not None:
        lines.append(Line("reward", report.trend.text))
    if report.causes:
        return [*lines, *_beside(report.event)]
    if report.pointers:
        note = report.pointers[0]
        lines.append(Line("note", f"{note.text} ({named(note)})"))
    if report.event is not None and report.event.after and report.event.text in headline_of(report):
        lines.append(Line("after", report.event.after))
    lines.append(Line("cause", _none(report)))
    if outcome_of(report) is not Outcome.HEALTHY and next_of(report) and not report.question:
        lines.append(Line("next", next_of(report)))
    return lines


def _beside(event: Event | None) -> list[Line]:
    """What happened on the way, under a cause: it may be where that comes from."""
    told = [] if event is None else [Line("event", event.text), Line("after", event.after)]
    return [line for line in told if line.text]


_BY_TREND = ("reward-falls", "reward-flat")
"""Troubles that the line on the reward tells."""


def _none(report: Found) -> str:
    """That no cause was found, and what that is worth."""
    tested, asked = report.tested, len(report.findings)
    if not tested:
        return f"None of {asked} causes could be tested."
    of = f"All {asked}" if tested == asked else f"{tested} of {asked}"
    common = ", the common ones among them" if common_tested(report) else ""
    present = "no other is" if report.pointers else "none of these is"
    return f"{of} causes could be tested{common}, and {present} present."
