"""A report shows itself in a notebook, and nothing in it is obeyed."""

import re
from html.parser import HTMLParser

import pytest

from flatline.diagnosis.report import Report, diagnose
from flatline.hypotheses.base import Evidence, Finding, Level
from tests.traces import healthy_trace

HOSTILE = '<script>alert(1)</script><img src=x onerror="a()">\x1b[31m\u202e & \'" javascript:x'
ALLOWED = {"div", "p", "b", "i", "span", "details", "summary", "ul", "li"}


class Reader(HTMLParser):
    """Elements, attributes and text, and whether every element is closed."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = set(), set(), [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(report):
    reader = Reader()
    reader.feed(report._repr_html_())
    assert not reader.open
    return reader


def finding(code, level, text="seen", **more):
    return Finding(hypothesis=code, name="a-name", level=level, text=text, **more)


def report_of(*findings):
    return Report(subject="x", findings=findings, trend=None)


def test_a_diagnosis_renders_itself_whole():
    report = diagnose(healthy_trace(steps=2))
    reader = read(report)
    assert report.answer.headline in reader.text and report.answer.untested in reader.text
    assert all(f"{one.hypothesis} {one.name}" in reader.text for one in report.findings)


@pytest.mark.parametrize("level", list(Level))
def test_hostile_text_stays_text_at_every_place(level):
    texts = dict.fromkeys(("text", "expected", "meaning", "fix"), HOSTILE)
    evidence = (Evidence(text=HOSTILE, step=1, rollout=2),)
    one = Finding(hypothesis=HOSTILE, name=HOSTILE, level=level, evidence=evidence, **texts)
    reader = read(report_of(one))
    assert reader.tags <= ALLOWED and reader.attributes <= {"style"}
    assert "alert(1)" in reader.text and "\\x1b" in reader.text and "\\u202e" in reader.text


def test_an_alarm_says_what_to_do_and_what_follows_from_it_needs_no_remedy():
    cause = finding("H09", Level.FAULT, fix="mend it", explains=("H03",))
    symptom = finding("H03", Level.SUSPECT, fix="not this")
    text = read(report_of(cause, symptom)).text
    assert "mend it" in text and "Follows from it: 1" in text and "not this" not in text


def test_text_takes_the_notebooks_colours_so_that_it_is_readable_in_light_and_dark():
    html = report_of(finding("H09", Level.FAULT), finding("H01", Level.SUSPECT))._repr_html_()
    styles = re.findall(r'style="([^"]*)"', html)
    assert styles
    for style in styles:
        assert not re.search(r"(?<![-\w])color:|background:", style)


def test_an_endless_example_is_cut():
    endless = finding("H09", Level.FAULT, evidence=(Evidence(text="a" * 100_000),))
    assert len(report_of(endless)._repr_html_()) < 5_000
