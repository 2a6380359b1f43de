"""SARIF 2.1.0, as code scanning reads it: one result per alarm or note, one rule per hypothesis.

What the run itself shows to be wrong (a reward that falls, no step) is a result as well. What is
healthy or could not be tested is none: scanners list every result as something to look at.
"""

import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from flatline import __version__
from flatline.diagnosis.answer import claim
from flatline.diagnosis.report import Report
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.live.where.place import Where
from flatline.text import visible

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Level.FAULT: "error", Level.SUSPECT: "warning", Level.NOTE: "note"}


def to_sarif(report: Report, *, about: PurePath | None = None) -> str:
    """The whole file. `about` is the file that a finding is shown beside, such as the log."""
    found = (*report.findings, *report.troubles)
    shown = [finding for finding in found if finding.level in LEVELS]
    rules = _rules(shown)
    driver = {"name": "flatline", "version": __version__, "rules": rules}
    place = {item["id"]: index for index, item in enumerate(rules)}
    run = {
        "tool": {"driver": driver},
        "results": [
            _result(finding, place[finding.hypothesis], about) | _state(finding, report)
            for finding in shown
        ],
        "properties": {"subject": visible(report.subject), "summary": visible(report.summary)},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rules(shown: list[Finding]) -> list[dict[str, Any]]:
    """The hypotheses that have something to say, with their manual pages."""
    known = {one.id: one for one in HYPOTHESES}
    names = {finding.hypothesis: finding.name for finding in shown}
    return [_rule(code, name, known.get(code)) for code, name in names.items()]


def _rule(code: str, name: str, hypothesis: Hypothesis | None) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": code, "name": name}
    if hypothesis is not None:
        manual = hypothesis.manual()
        rule["shortDescription"] = {"text": manual.splitlines()[0]}
        rule["help"] = {"text": manual, "markdown": manual}
    return rule


def _result(finding: Finding, place: int, about: PurePath | None) -> dict[str, Any]:
    head = claim(finding) if finding.headline else ""
    said = [head, finding.text, finding.meaning, finding.fix and f"Do: {finding.fix}"]
    result: dict[str, Any] = {
        "ruleId": finding.hypothesis,
        "ruleIndex": place,
        "level": LEVELS[finding.level],
        # Scanners follow a finding from one run to the next by this, whatever its numbers are.
        "partialFingerprints": {"flatline/v1": f"{finding.hypothesis}:{about or ''}"},
        "message": {"text": _literal("\n".join(visible(line) for line in said if line))},
    }
    if finding.where:
        first, *others = (_location(one) for one in finding.where)
        result["locations"] = [first]
        result["relatedLocations"] = [
            {"id": number, **one} for number, one in enumerate(others, start=1)
        ]
    elif about is not None:
        result["locations"] = [_physical(about.as_posix())]
    return result


def _state(finding: Finding, report: Report) -> dict[str, str]:
    """What a baseline knows is marked as such; scanners leave it alone."""
    return {"baselineState": "unchanged"} if finding.hypothesis in report.known else {}


def _location(where: Where) -> dict[str, Any]:
    """A line that code scanning shows the finding at."""
    source = {"text": visible(where.source)}
    return {
        **_physical(where.file, {"startLine": where.line, "snippet": source}),
        "message": {"text": _literal(visible(f"in {where.function}"))},
    }


def _physical(file: str, region: dict[str, Any] | None = None) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(file)}}
    return {"physicalLocation": place if region is None else {**place, "region": region}}


def _literal(text: str) -> str:
    """Braces are places for arguments in a SARIF message; double ones are braces."""
    return text.replace("{", "{{").replace("}", "}}")
