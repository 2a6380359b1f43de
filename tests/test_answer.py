"""The answer comes first, in plain words, and is the same in every form of a report."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flatline.diagnosis.answer import answer_of, headline_of
from flatline.diagnosis.renderers.ci.fail_on import FailOn
from flatline.diagnosis.renderers.ci.github import annotations
from flatline.diagnosis.renderers.ci.junit import to_junit
from flatline.diagnosis.renderers.ci.sarif import to_sarif
from flatline.diagnosis.renderers.console import to_console
from flatline.diagnosis.renderers.trackers.message import message_of
from flatline.diagnosis.report import Report
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Evidence, Finding, Level

HOUSE_WORDS = re.compile(
    r"\bH\d\d\b|\b(anew|plays?|played|told|cries|stands|departs?|invariant|look at|rung|nat)\b"
)
CAUSE = Finding(
    hypothesis="H09",
    name="loss-mask-as-attention",
    level=Level.FAULT,
    headline="Your trainer cannot see the question.",
    text="All 12 prompt tokens were hidden.",
    fix="Pass the attention mask.",
    evidence=(Evidence(text="an example", step=1, rollout=0),),
    explains=("H03",),
)
OTHER = replace(
    CAUSE, hypothesis="H24", name="learning-rate", level=Level.SUSPECT, headline="It is too low."
)
SYMPTOM = replace(OTHER, hypothesis="H03", name="kl-divergence", headline="It drifts.")
OPEN = Finding(
    hypothesis="H01", name="x", level=Level.UNKNOWN, text="Cannot tell.", needs="Record the run"
)


def report_of(*findings):
    return Report(subject="x", findings=findings, trend=None)


def shown(report, *, everything=False, width=100):
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(to_console(report, everything=everything))
    return out.getvalue()


@pytest.mark.parametrize("hypothesis", HYPOTHESES, ids=lambda one: one.id)
def test_every_hypothesis_has_a_headline_in_plain_words(hypothesis):
    line = hypothesis.headline
    assert line.endswith(".") and line[0].isupper()
    assert 4 <= len(line.split()) <= 15
    assert not HOUSE_WORDS.search(line)


@pytest.mark.parametrize(
    "form",
    [
        shown,
        lambda report: report.summary,
        lambda report: report.to_json()["headline"],
        lambda report: re.sub("<[^>]*>", "", report._repr_html_()),
        lambda report: message_of(report).title.removeprefix("flatline: "),
        lambda report: message_of(report).alert,
        lambda report: annotations(report)[0].split("title=")[1],
        lambda report: re.search('message="([^"]*)"', to_junit(report, fail_on=FailOn.FAULT))[1],
        lambda report: json.loads(to_sarif(report))["runs"][0]["results"][0]["message"]["text"],
    ],
    ids=["console", "summary", "json", "notebook", "title", "alert", "github", "junit", "sarif"],
)
def test_the_first_sentence_is_the_cause_without_a_code(form):
    report = report_of(CAUSE, OTHER, SYMPTOM, OPEN)
    assert form(report).lstrip().startswith("Your trainer cannot see the question.")


def test_what_is_only_suspected_is_said_to_be_suspected():
    assert headline_of(report_of(OTHER)) == "Suspected: It is too low."


def test_a_cause_comes_before_others_and_what_follows_from_it_comes_after_both():
    answer = answer_of(report_of(CAUSE, OTHER, SYMPTOM))
    assert (answer.cause, answer.others, answer.symptoms) == (CAUSE, (OTHER,), (SYMPTOM,))
    assert [line.label for line in answer.lines] == ["proof", "do", "example"]


def test_what_could_not_be_tested_is_one_line_with_what_would_test_most_of_it():
    others = [replace(OPEN, hypothesis=f"H0{n}") for n in range(2, 6)]
    report = report_of(CAUSE, *others, replace(OPEN, needs="Wait"))
    assert answer_of(report).untested == (
        "5 of 6 causes could not be tested. Record the run: that would test up to 4 of them."
    )
    assert answer_of(report_of(CAUSE)).untested == ""


def test_all_lists_what_the_short_form_leaves_out():
    report = report_of(CAUSE, SYMPTOM, OPEN)
    assert "Cannot tell." not in shown(report)
    assert "Cannot tell." in shown(report, everything=True)


def test_the_diagnosis_of_a_real_log_fits_on_a_screen():
    """As it is printed in a window of 80 columns."""
    kept = sorted((Path(__file__).parent / "golden" / "text" / "published").iterdir())
    assert kept and all(len(one.read_text().splitlines()) <= 40 for one in kept)
