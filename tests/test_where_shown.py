"""A line that a finding points at is in every form of a report, and its text is obeyed by none."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from sarif_pydantic import Sarif

from flatline.diagnosis.renderers.ci.fail_on import FailOn
from flatline.diagnosis.renderers.ci.github import annotations
from flatline.diagnosis.renderers.ci.junit import to_junit
from flatline.diagnosis.renderers.ci.sarif import to_sarif
from flatline.diagnosis.report import Report
from flatline.hypotheses.base import Finding, Level
from flatline.live.where.place import Where
from flatline.report.pages import environment

HOSTILE = "x = '</code><script>alert(1)</script>' # \x1b[31m {0} ::error::"
LINES = (
    Where(file="my rewards.py", line=12, source="return [0.0]", function="correct"),
    Where(file="trl/trainer/utils.py", line=7, source=HOSTILE, function="pad"),
)


@pytest.fixture
def report():
    alarm = Finding(hypothesis="H52", name="x", level=Level.FAULT, text="seen", where=LINES)
    return Report(subject="this trainer", findings=(alarm,), trend=None)


def console(report):
    out = io.StringIO()
    Console(file=out, width=200).print(report)
    return out.getvalue()


def page(report):
    card = environment().from_string(
        '{% from "_finding.html" import alarm_card %}{{ alarm_card(alarm) }}'
    )
    alarm = {"finding": report.findings[0], "word": "broken", "cause": None, "charts": []}
    return card.render(alarm=alarm)


@pytest.mark.parametrize(
    "rendered",
    [
        console,
        page,
        lambda report: report._repr_html_(),
        lambda report: to_junit(report, fail_on=FailOn.SUSPECT),
        lambda report: json.dumps(report.to_json()),
    ],
    ids=["console", "page", "notebook", "junit", "json"],
)
def test_every_form_of_a_report_shows_file_line_and_source(report, rendered):
    text = rendered(report)
    for told in ("my rewards.py", "12", "return [0.0]", "correct", "trl/trainer/utils.py"):
        assert told in text


@pytest.mark.parametrize(
    "rendered", [console, page, lambda report: report._repr_html_()], ids=["console", "page", "nb"]
)
def test_source_is_shown_and_never_obeyed(report, rendered):
    text = rendered(report)
    assert "\x1b" not in text
    assert rendered is console or "<script>" not in text


def test_code_scanning_annotates_the_likeliest_line_and_lists_the_others(report):
    text = to_sarif(report, about=Path("run.toml"))
    Sarif.model_validate_json(text, extra="forbid")
    (result,) = json.loads(text)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "my%20rewards.py"
    assert place["region"]["startLine"] == 12
    (other,) = result["relatedLocations"]
    assert other["physicalLocation"]["region"]["startLine"] == 7


def test_a_workflow_annotation_stands_at_the_likeliest_line(report):
    (line,) = annotations(report, about=Path("run.toml"))
    assert line.startswith("::error file=my rewards.py,line=12,title=")
