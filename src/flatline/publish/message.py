"""What a tracker is told: a few values, a title, and a page of Markdown.

Findings quote models, logs and file names. A tracker shows Markdown to everyone in a team and posts
alerts to chats, so all of it is escaped: no tag, link, mention or heading comes from such a text.
"""

from dataclasses import dataclass

from flatline.diagnosis import Report
from flatline.found import explained_by
from flatline.hypotheses.base import Finding, Level
from flatline.journal.escape import inline, one_line

EXAMPLES = 2
"""Examples of each alarm."""
LONGEST = 500
"""Characters of one value or of the text of an alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A diagnosis for a tracker."""

    values: dict[str, str | int]
    """By short name: verdict, cause, summary, tested, hypotheses. Plain text, not Markdown."""
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
    named = ", ".join(f"{cause.hypothesis} {cause.name}" for cause in causes)
    verdict = _verdict(report)
    title = f"flatline: {named} ({verdict})" if named else f"flatline: {verdict}"
    return Message(
        values={
            "verdict": verdict,
            "cause": named or "none",
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
    symptoms = explained_by(report.findings)
    alarms = [_alarm(one, symptoms.get(one.hypothesis)) for one in report.alarms]
    told = f"{report.tested} of {len(report.findings)} hypotheses could be tested."
    parts = [
        f"# {inline(title)}",
        inline(report.summary),
        *(f"Mind: {inline(text, limit=LONGEST)}" for text in report.caveats),
        *alarms,
        f"{told} Diagnosed: {inline(report.subject, limit=LONGEST)}",
    ]
    return "\n\n".join(parts) + "\n"


def _alarm(finding: Finding, cause: str | None) -> str:
    head = f"## {inline(finding.hypothesis)} {inline(finding.name)}: {finding.level.value}"
    lines = [("Seen", finding.text), ("Healthy", finding.expected)]
    if cause:
        lines.append(("A symptom of", cause))
    else:
        lines += [("Matters", finding.meaning), ("Do", finding.fix)]
        lines += [("Example", one.text) for one in finding.evidence[:EXAMPLES]]
        lines += [("Where", str(one)) for one in finding.where]
    listed = [f"- **{name}:** {inline(text, limit=LONGEST)}" for name, text in lines if text]
    return "\n".join([head, "", *listed])
