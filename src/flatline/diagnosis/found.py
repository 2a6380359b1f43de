"""What was found, as a plain record: everything that ends in a report reads this."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flatline.hypotheses.base import ALARMS, Finding, Level
from flatline.hypotheses.trend import Trend
from flatline.live.restore.tell import PutBack
from flatline.remarks.remark import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What all hypotheses say about one run, log or trainer."""

    subject: str
    """What was looked at: a run, a log or a live trainer."""
    findings: tuple[Finding, ...]
    """One per hypothesis, most likely cause first."""
    trend: Trend | None
    """Whether the reward moves at all; None where there is no history."""
    caveats: tuple[str, ...] = ()
    """What was lost, left out or assumed when the run was read."""
    damaged: bool = False
    """Part of the run could not be read."""
    ended: str = ""
    """That the training ended with an error, in a sentence; empty where it did not."""
    broke_off: str = ""
    """That the recording ended before the training, and why; empty where it did not."""
    made_no_step: bool = False
    """The optimizer never stepped."""
    known: tuple[str, ...] = ()
    """Codes of alarms that a baseline knows: shown, and not counted as failures."""
    question: str = ""
    """What only the user can say, where something hangs on it."""
    event: Event | None = None
    """What happened on the way, of a log."""
    put_back: PutBack | None = None
    """How a checkup left the trainer; None of a run or a log."""
    remarks: tuple[str, ...] = ()
    """What the numbers of a log say beside any cause."""

    @property
    def alarms(self) -> list[Finding]:
        """What may be the cause, most likely first."""
        return [finding for finding in self.findings if finding.level in ALARMS]

    @property
    def causes(self) -> list[Finding]:
        """Alarms that no other alarm explains; all of them, should they explain each other."""
        explained = explained_by(self.findings)
        free = [finding for finding in self.alarms if finding.hypothesis not in explained]
        return free or self.alarms

    @property
    def tested(self) -> int:
        """Hypotheses that could be determined one way or the other."""
        return sum(finding.level is not Level.UNKNOWN for finding in self.findings)

    @property
    def pointers(self) -> list[Finding]:
        """Notes that are no all-clear, strongest first."""
        notes = [finding for finding in self.findings if finding.points_at_cause]
        return sorted(notes, key=lambda finding: -weight(finding))


def explained_by(findings: Sequence[Finding]) -> dict[str, str]:
    """Alarm -> the alarm that produces it."""
    alarms = [finding for finding in findings if finding.level in ALARMS]
    causes: dict[str, str] = {}
    for cause in sorted(alarms, key=lambda finding: list(Level).index(finding.level)):
        for alarm in alarms:
            if alarm.hypothesis in cause.explains and not alarm.proven:
                causes.setdefault(alarm.hypothesis, cause.hypothesis)
    return causes


def weight(finding: Finding) -> float:
    """Its severity; what is no number is beyond all others."""
    return finding.severity if math.isfinite(finding.severity) else math.inf
