"""What flatline says about one run: in full, and with less and less of what was recorded."""

import math
import time
from collections.abc import Callable
from typing import Any

from bench.logs import log_alone
from flatline.diagnosis.report import Report, diagnose
from flatline.errors import FlatlineError
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Finding, Level
from flatline.trace import Trace

AFTER = (10, 20, 40)
"""Steps after which a run is diagnosed."""
EVERYTHING, ROLLOUTS, LOG = "everything", "rollouts", "log"
"""What the trace still has: all; no tokens and weights; nothing but the log of the trainer."""
DEFECT = "Could not be looked at"


def looks(trace: Trace, steps: int) -> dict[str, Any]:
    """Diagnoses after 10, 20 and 40 steps, and at the end without tokens, then without rollouts."""
    after = [step for step in AFTER if step <= steps]
    return {
        "diagnose": {str(step): timed(_until(trace, step)) for step in after},
        "ablation": {
            ROLLOUTS: timed(lambda: diagnose(without_tokens(trace), hypotheses=HYPOTHESES)),
            LOG: timed(lambda: diagnose(log_alone(trace), hypotheses=HYPOTHESES)),
        },
        "seconds_until": {str(step): _seconds_until(trace, step) for step in after},
    }


def _until(trace: Trace, step: int) -> Callable[[], Report]:
    return lambda: diagnose(trace.until(step), hypotheses=HYPOTHESES)


def timed(look: Callable[[], Report]) -> dict[str, Any]:
    """A report in short, with the seconds that it took; or why there was nothing to look at."""
    start = time.perf_counter()
    try:
        report = look()
    except FlatlineError as error:
        return {"failure": str(error)}
    return {**brief(report), "seconds": round(time.perf_counter() - start, 3)}


def brief(report: Report) -> dict[str, Any]:
    """Alarms in their order, causes among them, and how much could not be told."""
    unknown = [f.hypothesis for f in report.findings if f.level is Level.UNKNOWN]
    return {
        "alarms": [finding.hypothesis for finding in report.alarms],
        "levels": [finding.level.value for finding in report.alarms],
        "causes": [finding.hypothesis for finding in report.causes],
        "ranking": [_ranking(finding) for finding in report.alarms],
        "texts": [finding.text for finding in report.alarms[:4]],
        "unknown": unknown,
        "asked": len(report.findings),
        "defects": [f.hypothesis for f in report.findings if DEFECT in f.text],
    }


def _ranking(finding: Finding) -> dict[str, Any]:
    """What an alarm is ranked by among others, beside its level; JSON has no infinity."""
    return {
        "explains": list(finding.explains),
        "proven": finding.proven,
        "severity": finding.severity if math.isfinite(finding.severity) else None,
    }


def without_tokens(trace: Trace) -> Trace:
    """The trace with steps and rollouts alone: no tokens, no weights."""
    batches = {
        "steps": trace.steps.table.to_batches(),
        "rollouts": trace.rollouts.table.to_batches(),
    }
    return Trace.from_batches(batches, run=trace.run)


def _seconds_until(trace: Trace, step: int) -> float | None:
    """Training time up to the end of a step, evaluations left out."""
    if "seconds" not in trace.steps:
        return None
    numbers = zip(trace.steps["step"], trace.steps["seconds"], strict=True)
    return round(float(sum(seconds for at, seconds in numbers if 0 < at <= step)), 1)
