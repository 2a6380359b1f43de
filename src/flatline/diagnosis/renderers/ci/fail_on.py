"""What makes a command fail. Light: the command line imports it to show its options."""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # these would bring numpy
    from flatline.diagnosis.report import Report
    from flatline.hypotheses.base import Finding


class FailOn(StrEnum):
    """The least sure finding that fails."""

    FAULT = "fault"
    """A broken invariant; no step, a reward that falls, a recording of which part is lost."""
    SUSPECT = "suspect"
    """Also what is beyond what healthy runs show, and a reward that is flat."""
    NEVER = "never"
    """Nothing that is found; bad input fails all the same."""


_FAILING = {
    FailOn.FAULT: ("fault",),
    FailOn.SUSPECT: ("fault", "suspect"),
    FailOn.NEVER: (),
}


def fails(report: "Report", fail_on: FailOn) -> "list[Finding]":
    """What fails: causes, most likely first, then what the run itself shows to be wrong. What a
    baseline knows does not."""
    found = (*report.findings, *report.troubles)
    new = [finding for finding in found if finding.hypothesis not in report.known]
    return [finding for finding in new if finding.level.value in _FAILING[fail_on]]
