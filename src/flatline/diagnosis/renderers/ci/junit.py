"""JUnit XML, as CI servers show it: one test case per hypothesis and per trouble of the run.

What fails is what `--fail-on` says; a suspect that does not fail is in the output of its case, and
what could not be tested is skipped.
"""

import re
from xml.etree import ElementTree

from flatline.diagnosis.answer import claim, lines_of, named
from flatline.diagnosis.renderers.ci.fail_on import FailOn, fails
from flatline.diagnosis.report import Report
from flatline.hypotheses.base import Finding, Level
from flatline.text import visible

_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 file may hold, not even escaped."""


def to_junit(report: Report, *, fail_on: FailOn) -> str:
    """The whole file."""
    failing = fails(report, fail_on)
    cases = [*report.findings, *report.troubles]
    skipped = [one for one in cases if one.level is Level.UNKNOWN]
    counts = {
        "tests": str(len(cases)),
        "failures": str(len(failing)),
        "errors": "0",
        "skipped": str(len(skipped)),
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(
        suites, "testsuite", {"name": _legal(f"flatline: {report.subject}"), **counts}
    )
    for finding in cases:
        _case(suite, finding, fail=finding in failing)
    ElementTree.SubElement(suite, "system-out").text = _legal(report.summary)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _case(suite: ElementTree.Element, finding: Finding, *, fail: bool) -> None:
    about = {"classname": "flatline", "name": named(finding)}
    case = ElementTree.SubElement(suite, "testcase", about)
    if fail:
        kind = {"type": finding.level.value, "message": _legal(claim(finding))}
        ElementTree.SubElement(case, "failure", kind).text = _legal(_details(finding))
    elif finding.level is Level.UNKNOWN:
        ElementTree.SubElement(case, "skipped", {"message": _legal(finding.text)})
    else:
        text = f"{finding.level.value}: {finding.text}"
        ElementTree.SubElement(case, "system-out").text = _legal(text)


def _details(finding: Finding) -> str:
    lines = [f"{line.label.capitalize()}: {line.text}" for line in lines_of(finding)]
    return "\n".join([claim(finding), *lines])


def _legal(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))
