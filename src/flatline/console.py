"""A report as a terminal shows it: the answer, the evidence, the rest."""

import io

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flatline.found import Found, explained_by
from flatline.hypotheses.base import Evidence, Finding
from flatline.text import shortened, visible

_STYLES = {"fault": "bold red", "suspect": "bold yellow", "note": "cyan"}
_REST = {
    "note": "Worth knowing",
    "ok": "Ruled out",
    "unknown": "Could not be tested",
}
_LONGEST = 400
"""Characters of one example."""


def plain(shown: RenderableType) -> str:
    """Without colours, as wide as the terminal."""
    out = io.StringIO()
    Console(file=out, highlight=False).print(shown)
    return out.getvalue().rstrip("\n")


def to_console(report: Found, summary: str) -> RenderableType:
    """The answer first, then each alarm with its evidence, then what was ruled out and by what."""
    explained = explained_by(report.findings)
    alarms = [_alarm(f, explained.get(f.hypothesis)) for f in report.alarms]
    rest = [
        _rest(title, [f for f in report.findings if f.level == level])
        for level, title in _REST.items()
    ]
    looked = f"{report.tested} of {len(report.findings)} hypotheses could be tested."
    return Group(
        Text(visible(summary), style="bold"),
        *(Text(visible(f"Mind: {text}")) for text in report.caveats),
        Text(),
        *alarms,
        *(section for section in rest if section is not None),
        Text(f"{looked} `flatline explain H09` prints the manual page of one.", style="dim"),
    )


def _alarm(finding: Finding, cause: str | None) -> RenderableType:
    head = Text.assemble(
        (f"{finding.level.value.upper():<8}", _STYLES[finding.level.value]),
        (f"{finding.hypothesis} {finding.name}", "bold"),
        (f"  (a symptom of {cause})" if cause else "", "dim"),
    )
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _lines(finding, symptom=cause is not None):
        table.add_row(label, Text(visible(text)))
    return Group(head, Padding(table, (0, 0, 1, 8)))


def _lines(finding: Finding, *, symptom: bool) -> list[tuple[str, str]]:
    """What stands below the head; a symptom needs no remedy of its own."""
    lines = [("seen", finding.text), ("healthy", finding.expected)]
    if not symptom:
        lines.append(("matters", finding.meaning))
        lines += [("example", _example(one)) for one in finding.evidence]
        lines += [("where", str(one)) for one in finding.where]
        lines.append(("do", finding.fix))
    return [(label, text) for label, text in lines if text]


def _example(one: Evidence) -> str:
    named = (("step", one.step), ("rollout", one.rollout))
    place = ", ".join(f"{name} {number}" for name, number in named if number is not None)
    return f"{place}: {shortened(one.text, limit=_LONGEST)}" if place else one.text


def _rest(title: str, findings: list[Finding]) -> RenderableType | None:
    if not findings:
        return None
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title=title, title_style="bold")
    table.add_column("hypothesis", no_wrap=True)
    table.add_column("what was seen", overflow="fold")
    for finding in sorted(findings, key=lambda f: f.hypothesis):
        table.add_row(f"{finding.hypothesis} {finding.name}", Text(visible(finding.text)))
    return table
