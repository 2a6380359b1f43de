"""What a tracker gets: a few values, a title, and a page of Markdown.

Findings quote models, logs and file names. A tracker shows Markdown to everyone in a team and posts
alerts to chats, so all of it is escaped: no tag, link, mention or heading comes from such a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flatline.diagnosis.answer import Line, also, answer_of, headline_of, lines_of, named
from flatline.diagnosis.report import Report
from flatline.hypotheses.base import Finding, Level
from flatline.markdown import inline, one_line

EXAMPLES = 2
"""Examples of each alarm."""
LONGEST = 500
"""Characters of one value or of the text of an alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A diagnosis for a tracker."""

    values: dict[str, str | int]
    """By short name: verdict, cause, headline, summary, tested, hypotheses. Plain text."""
    title: str
    """One line."""
    alert: str
    """A few sentences for a chat; empty where nothing is wrong."""
    fault: bool
    """Whether that is certain, and not only suspected."""
    markdown: str
    """The whole of it."""


def message_of(report: Report) -> Message:
    """The diagnosis as trackers want it."""
    causes = report.causes
    wrong = causes or report.troubles
    title = f"flatline: {headline_of(report)}"
    return Message(
        values={
            "verdict": _verdict(report),
            "cause": ", ".join(map(named, causes)) or "none",
            "headline": one_line(headline_of(report), limit=LONGEST),
            "summary": one_line(report.summary, limit=LONGEST),
            "tested": report.tested,
            "hypotheses": len(report.findings),
        },
        title=inline(title, limit=LONGEST),
        alert=inline(report.summary, limit=LONGEST) if wrong else "",
        fault=bool(wrong) and wrong[0].level is Level.FAULT,
        markdown=_page(report, title),
    )


def _verdict(report: Report) -> str:
    if report.causes:
        return report.causes[0].level.value
    return report.outcome.value


def _page(report: Report, title: str) -> str:
    answer = answer_of(report)
    parts = [
        f"# {inline(title)}",
        _listed(answer.lines),
        *([f"Cause: {inline(named(answer.cause))}"] if answer.cause else []),
        *(inline(text, limit=LONGEST) for text in (report.question, answer.untested) if text),
        *(f"Note: {inline(text, limit=LONGEST)}" for text in report.caveats),
        *(_section(one, also(one)) for one in answer.others),
        *(_section(one, "Follows from it") for one in answer.symptoms),
        f"Diagnosed: {inline(report.subject, limit=LONGEST)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(finding: Finding, head: str) -> str:
    return f"## {inline(head)} ({inline(named(finding))})\n\n{_listed(lines_of(finding))}"


def _listed(lines: Sequence[Line]) -> str:
    shown = [line for line in lines if line.label != "example"]
    shown += [line for line in lines if line.label == "example"][:EXAMPLES]
    return "\n".join(
        f"- **{line.label.capitalize()}:** {inline(line.text, limit=LONGEST)}" for line in shown
    )
