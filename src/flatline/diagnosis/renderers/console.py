"""A report as a terminal shows it: the answer of `diagnosis.answer`, as short as it can be."""

import io
from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flatline.diagnosis.answer import Answer, Line, also, answer_of, lines_of, named
from flatline.diagnosis.found import Found
from flatline.hypotheses.base import Finding
from flatline.remarks import SHOWN
from flatline.text import visible

_STYLES = {"fault": "bold red", "suspect": "bold yellow"}
_EACH = {
    "note": "Worth knowing",
    "ok": "Ruled out, and by what",
    "unknown": "Could not be tested, and why",
}
_MOST = {"line": 2, "why": 0}
"""Lines of one kind where not everything is asked for; 1 of any other."""
_NOTES = 3
"""Notes that are shown where not everything is asked for."""


def plain(shown: RenderableType) -> str:
    """Without colours, as wide as the terminal."""
    out = io.StringIO()
    Console(file=out, highlight=False).print(shown)
    return out.getvalue().rstrip("\n")


def to_console(report: Found, *, everything: bool = False) -> RenderableType:
    """The cause, what proves it, what to do; then the rest in a line each, or `everything`."""
    answer = answer_of(report)
    style = _STYLES.get(answer.cause.level.value, "bold") if answer.cause else "bold"
    return Group(
        Text(visible(answer.headline), style=style),
        _table(answer.lines if everything else _short(answer.lines)),
        *([Text(visible(report.question))] if report.question else []),
        *(_other(one, everything=everything) for one in answer.others),
        *_remarks(report, everything=everything),
        Text(),
        *(Text(visible(f"Note: {text}")) for text in report.caveats),
        *(_each(report, answer) if everything else _rest(report, answer)),
        Text(_manual(answer, everything=everything), style="dim"),
    )


def _remarks(report: Found, *, everything: bool) -> list[RenderableType]:
    """What the numbers of a log say, whatever the cause."""
    told = report.remarks if everything else report.remarks[:SHOWN]
    left = len(report.remarks) - len(told)
    listed = [*told, *([f"{left} more with `--all`."] if left else [])]
    shown = [Padding(Text(visible(text)), (0, 0, 0, 2)) for text in listed]
    return [Text("\nWhat the numbers say", style="bold"), *shown] if shown else []


def _short(lines: Sequence[Line]) -> list[Line]:
    """One example shows what two show, and a headline needs no reason beside its proof."""
    seen = Counter[str]()
    kept = []
    for line in lines:
        seen[line.label] += 1
        if seen[line.label] <= _MOST.get(line.label, 1):
            kept.append(line)
    return kept


def _table(lines: Iterable[Line]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(line.label, Text(visible(line.text)))
    return Padding(table, (0, 0, 0, 2))


def _other(finding: Finding, *, everything: bool) -> RenderableType:
    """Another cause, with what proves it and what to do."""
    head = Text.assemble(
        "\n", (visible(also(finding)), "bold"), (f" ({visible(named(finding))})", "dim")
    )
    lines = lines_of(finding)
    kept = lines if everything else [line for line in lines if line.label in ("proof", "do")]
    return Group(head, _table(kept))


def _rest(report: Found, answer: Answer) -> list[RenderableType]:
    """A line for each kind of what is left."""
    lead = report.pointers[:1] if not report.causes else []
    notes = [one for one in report.findings if one.level == "note" and one not in lead]
    cleared = sum(one.level == "ok" for one in report.findings)
    lines = [
        ("Follows from it", ", ".join(named(one) for one in answer.symptoms)),
        *(("Worth knowing", f"{one.text} ({named(one)})") for one in notes[:_NOTES]),
        ("Worth knowing", f"{len(notes) - _NOTES} more." if len(notes) > _NOTES else ""),
        ("Ruled out", f"{cleared} of {len(report.findings)} causes." if cleared else ""),
    ]
    said = [Text.assemble((f"{label}: ", "bold"), visible(text)) for label, text in lines if text]
    return [*said, *([Text(visible(answer.untested))] if answer.untested else [])]


def _each(report: Found, answer: Answer) -> list[RenderableType]:
    """Every hypothesis with what was seen."""
    groups = {
        title: [one for one in report.findings if one.level == level]
        for level, title in _EACH.items()
    }
    listed = {"Follows from another cause": list(answer.symptoms), **groups}
    return [_listed(title, findings) for title, findings in listed.items() if findings]


def _listed(title: str, findings: list[Finding]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title=title, title_style="bold")
    table.add_column("hypothesis", no_wrap=True)
    table.add_column("what was seen", overflow="fold")
    for finding in sorted(findings, key=lambda f: f.hypothesis):
        table.add_row(named(finding), Text(visible(finding.text)))
    return table


def _manual(answer: Answer, *, everything: bool) -> str:
    """Where to read on."""
    rest = "" if everything else "`--all` lists every cause. "
    if answer.cause is None:
        return f"{rest}`flatline explain H09` prints the manual page of a cause."
    return f"{rest}`flatline explain {answer.cause.hypothesis}` explains {answer.cause.name}."
