"""A trace as it is now -> the alarms that are new.

Every look is a whole diagnosis of the latest steps; what it calls a cause is an alarm. To look
often must not raise the chance of a false one:

- a fault is a broken invariant. Arithmetic rules out that a right step shows it, however often one
  looks: it is reported at once.
- a suspicion is beyond what healthy runs show when looked at once. It is reported when every
  look has said so while the steps doubled: what comes by chance goes when as much again is seen.
- a trend is reported by a test that holds at all looks together (`trends`).
"""

import numpy as np

from flatline.alarms.alarm import Alarm
from flatline.alarms.trends import Trends
from flatline.diagnosis.answer import claim
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Finding, Level
from flatline.trace import Trace

WINDOW = 32
"""Latest steps that a look is at: what broke after a thousand right ones is not outvoted by them,
and a look costs the same however long the run is."""
FEWEST = 5
"""Steps that a suspicion lasts before it is reported, at least."""


class Lookout:
    """What is known of one run."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._trends = Trends()
        self._told: set[str] = set()
        self._suspected: dict[str, int] = {}
        """Hypothesis -> the row at which every look began to suspect it."""
        self._looked = 0
        """Rows of steps at the last look."""

    def look(self, trace: Trace) -> list[Alarm]:
        """The alarms that have not been reported yet."""
        steps = whole_steps(trace)
        if len(steps) < self._looked:  # a training that began again replaced the old one
            self._begin()
        if len(steps) == self._looked:
            return []
        if self._looked == 0 and len(steps) > 2 * FEWEST:
            # A run that was not watched from its beginning: what would have been seen before.
            self._diagnose(trace, steps[: len(steps) - _patience(len(steps) // 2)])
        with np.errstate(all="ignore"):  # a log may hold any number
            found = self._trends.add(trace.between(self._trends.seen + 1, int(steps[-1])))
        return [*self._diagnose(trace, steps), *found]

    def _diagnose(self, trace: Trace, steps: np.ndarray) -> list[Alarm]:
        first = 0 if len(steps) <= WINDOW else int(steps[-WINDOW])
        report = diagnose(trace.between(first, int(steps[-1])))
        self._looked = len(steps)
        suspects = {one.hypothesis for one in report.causes if one.level is Level.SUSPECT}
        self._suspected = {
            code: self._suspected.get(code, self._looked) for code in sorted(suspects)
        }
        return [
            self._tell(finding, int(steps[-1])) for finding in report.causes if self._due(finding)
        ]

    def _due(self, finding: Finding) -> bool:
        if finding.level is Level.FAULT:
            return f"{finding.hypothesis} fault" not in self._told
        if finding.hypothesis in self._told:
            return False
        since = self._suspected[finding.hypothesis]
        return self._looked - since >= _patience(since)

    def _tell(self, finding: Finding, step: int) -> Alarm:
        self._told |= {finding.hypothesis, f"{finding.hypothesis} {finding.level.value}"}
        return Alarm(
            step=step,
            level=finding.level.value,
            code=finding.hypothesis,
            name=finding.name,
            text=finding.text,
            fix=finding.fix,
            headline=claim(finding),
        )


def whole_steps(trace: Trace) -> np.ndarray:
    """Steps that are recorded whole, in their order. Where processes write side by side, the last
    one may still lack what another wrote."""
    table = trace.steps if len(trace.steps) else trace.rollouts
    if not len(table):
        return np.zeros(0, dtype=np.int64)
    step = table["step"]
    steps = np.unique(step[np.isfinite(step) & (step > 0)]).astype(np.int64)
    several = int(trace.settings.get("world_size") or 1) > 1
    return steps[:-1] if several else steps


def _patience(row: int) -> int:
    """Rows that a suspicion must last which began at this one."""
    return min(max(row, FEWEST), WINDOW // 2)
