"""Annotations of GitHub Actions: workflow commands on the output of a step.

The runner obeys every line that begins with `::`, whoever wrote it. So what an annotation says is
escaped as the runner unescapes it; nothing else that the command line prints can be such a line,
see `flatline.cli.output`.
"""

from pathlib import PurePath

from flatline.diagnosis.answer import claim, named
from flatline.diagnosis.report import Report
from flatline.hypotheses.base import Finding, Level
from flatline.text import visible

_COMMANDS = {Level.FAULT: "error", Level.SUSPECT: "warning"}


def annotations(report: Report, *, about: PurePath | None = None) -> list[str]:
    """One line per alarm, most likely cause first, and per thing that is wrong with the run itself;
    a notice where there is none. What a baseline knows is not annotated."""
    listed = (*report.alarms, *report.troubles)
    found = [finding for finding in listed if finding.hypothesis not in report.known]
    if not found:
        return [f"::notice title=flatline::{_data(report.summary)}"]
    return [_annotation(finding, about) for finding in found]


def _annotation(finding: Finding, about: PurePath | None) -> str:
    file = _beside(finding, about)
    do = f"\nDo: {finding.fix}" if finding.fix else ""
    said = f"{finding.text}{do}\nCause: {named(finding)}"
    return f"::{_COMMANDS[finding.level]} {file}title={_property(claim(finding))}::{_data(said)}"


def _beside(finding: Finding, about: PurePath | None) -> str:
    """Where the runner shows it: the likeliest line, else the file that was looked at."""
    if finding.where:
        first = finding.where[0]
        return f"file={_property(first.file)},line={first.line},"
    return f"file={_property(about.as_posix())}," if about is not None else ""


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
