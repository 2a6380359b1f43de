"""A trace -> what every hypothesis says about it, most likely cause first.

The order can be explained. Alarms come first. Among them, one that another alarm produces goes
behind its cause: a loss mask used as attention mask makes the KL explode, so an exploding KL is
its symptom and not a second cause. Then the surer level, then how far beyond its threshold a
finding is.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatline.errors import NotRecorded
from flatline.files import write_atomically
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import ALARMS, Finding, HasSign, Hypothesis, Level
from flatline.hypotheses.trend import Trend, too_short, trend_of
from flatline.notebook import to_html
from flatline.trace import Trace
from flatline.trace.folder import RUN_FILE

_QUIET = np.errstate(all="ignore")
"""A log may hold any number, and the console is for findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found."""

    subject: str
    """What was looked at: a run, a log or a live trainer."""
    findings: tuple[Finding, ...]
    """One per hypothesis, most likely cause first."""
    trend: Trend | None
    """Whether the reward moves at all; None where there is no history."""
    caveats: tuple[str, ...] = ()
    """What was lost, left out or assumed when the run was read."""
    damaged: bool = False
    """Part of the run could not be read: silence is no all-clear."""

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
        """Hypotheses that could be told one way or the other."""
        return sum(finding.level is not Level.UNKNOWN for finding in self.findings)

    @property
    def falls(self) -> bool:
        """Whether the reward certainly falls."""
        return self.trend is not None and self.trend.change.high < 0

    @property
    def clear(self) -> bool:
        """Whether silence means that nothing is wrong, as far as can be seen."""
        return bool(self.tested) and not (self.alarms or self.damaged or self.falls)

    @property
    def summary(self) -> str:
        """The answer in a sentence or two."""
        return summarise(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return to_html(self, explained_by(self.findings))

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `--json` prints."""
        return {
            "version": 1,
            "subject": self.subject,
            "summary": self.summary,
            "tested": self.tested,
            "trend": self.trend and self.trend.to_json(),
            "damaged": self.damaged,
            "caveats": list(self.caveats),
            "explained_by": explained_by(self.findings),
            "findings": [finding.to_json() for finding in self.findings],
        }


@_QUIET
def diagnose(
    trace: Trace, *, hypotheses: Sequence[Hypothesis] = HYPOTHESES, name: str = ""
) -> Report:
    """Every sign of every hypothesis, ranked."""
    findings = [
        guarded(hypothesis, hypothesis.sign, trace)
        for hypothesis in hypotheses
        if isinstance(hypothesis, HasSign)
    ]
    trend = trend_of(trace)
    short = None if trend else too_short(trace)
    return Report(
        subject=name or str(trace.run.get("name") or "this run"),
        findings=tuple(rank(findings)),
        trend=trend,
        # Known once everything was read.
        caveats=(*trace.caveats, *([short] if short else [])),
        damaged=bool(trace.warnings),
    )


def save(report: Report, run: Path) -> None:
    """Keep the diagnosis beside the run it is about; a single log file is left alone."""
    if (run / RUN_FILE).is_file():
        with suppress(OSError):  # a run on a read-only disk can be diagnosed all the same
            write_atomically(run / "diagnosis.json", [json.dumps(report.to_json(), indent=2)])


@_QUIET
def guarded(hypothesis: Hypothesis, look: Callable[[Any], Finding], at: Any) -> Finding:
    """What a hypothesis finds; what it lacks, or its own mistake, is a finding that cannot tell."""
    try:
        return look(at)
    except NotRecorded as missing:
        return hypothesis.found(
            Level.UNKNOWN,
            f"Cannot tell: it needs `{missing.column}`, which was not recorded. "
            "Record the run with `flatline.attach(trainer, run_dir)`.",
        )
    except Exception as error:
        # One hypothesis that trips over odd data must not cost the user all the others.
        return hypothesis.found(
            Level.UNKNOWN,
            f"Could not be looked at: {type(error).__name__}: {error}. "
            "This is a defect of flatline; please report it.",
        )


def rank(findings: Iterable[Finding]) -> list[Finding]:
    """Most likely cause first."""
    listed = list(findings)
    explained = explained_by(listed)
    order = list(Level)

    def key(finding: Finding) -> tuple[bool, bool, int, float, str]:
        return (
            finding.level not in ALARMS,
            finding.hypothesis in explained,
            order.index(finding.level),
            -finding.severity if math.isfinite(finding.severity) else -math.inf,
            finding.hypothesis,
        )

    return sorted(listed, key=key)


def explained_by(findings: Sequence[Finding]) -> dict[str, str]:
    """Alarm -> the alarm that produces it."""
    alarms = [finding for finding in findings if finding.level in ALARMS]
    causes: dict[str, str] = {}
    for cause in sorted(alarms, key=lambda finding: list(Level).index(finding.level)):
        for alarm in alarms:
            if alarm.hypothesis in cause.explains and not alarm.proven:
                causes.setdefault(alarm.hypothesis, cause.hypothesis)
    return causes


def summarise(report: Report) -> str:
    """The answer in a sentence or two."""
    told = f"{report.tested} of {len(report.findings)} hypotheses could be told"
    trend = f"{report.trend.text} " if report.trend else ""
    if report.causes:
        first, *others = report.causes
        also = f" Also: {', '.join(f'{f.hypothesis} {f.name}' for f in others)}." if others else ""
        word = "is broken" if first.level is Level.FAULT else "is suspected"
        return f"{trend}{first.hypothesis} {first.name} {word}: {first.text}{also}"
    if not report.tested:
        return f"{trend}Cannot tell: too little was recorded for any of the hypotheses."
    if report.damaged:
        return f"{trend}Part of this could not be read. In the rest nothing fires: {told}."
    if report.falls:
        return f"{trend}No hypothesis explains it: {told}, and none of them fired."
    return f"{trend}Nothing is wrong as far as can be seen: {told}, and none of them fired."
