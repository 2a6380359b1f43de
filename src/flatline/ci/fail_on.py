"""What makes a command fail. Light: the command line imports it to show its options."""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # these would bring numpy
    from flatline.diagnosis import Report
    from flatline.hypotheses.base import Finding


class FailOn(StrEnum):
    """The least sure finding that fails."""

    FAULT = "fault"
    """Only a broken invariant."""
    SUSPECT = "suspect"
    """Also what is beyond what healthy runs show."""
    NEVER = "never"
    """Nothing that is found; bad input fails all the same."""


_FAILING = {
    FailOn.FAULT: ("fault",),
    FailOn.SUSPECT: ("fault", "suspect"),
    FailOn.NEVER: (),
}


def fails(report: "Report", fail_on: FailOn) -> "list[Finding]":
    """The findings that fail, most likely cause first."""
    return [finding for finding in report.findings if finding.level.value in _FAILING[fail_on]]
