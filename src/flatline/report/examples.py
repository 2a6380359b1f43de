"""Which rollouts a report shows: what the findings name, and where both sides differ most."""

from dataclasses import dataclass

import numpy as np

from flatline.diagnosis.report import Report
from flatline.errors import NotRecorded
from flatline.hypotheses import logprobs
from flatline.trace import Trace

MOST = 5
"""Rollouts with all their tokens; each takes some hundred kilobytes."""
LOOKED_AT = 6
"""Steps whose rollouts are compared for the largest disagreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One rollout, and why it is shown."""

    step: int
    """Optimizer step."""
    rollout: int
    """Number in the step."""
    why: tuple[str, ...]
    """Reasons, in sentences."""


def chosen(trace: Trace, report: Report) -> list[Example]:
    """The first evidence of every alarm, then the largest and the smallest disagreement."""
    reasons: dict[tuple[int, int], list[str]] = {}
    for place, why in [*_of_findings(report), *_of_disagreement(trace)]:
        reasons.setdefault(place, []).append(why)
    known = set(zip(trace.rollouts["step"], trace.rollouts["rollout"], strict=True))
    return [
        Example(step=place[0], rollout=place[1], why=tuple(why))
        for place, why in reasons.items()
        if place in known
    ][:MOST]


def _of_findings(report: Report) -> list[tuple[tuple[int, int], str]]:
    found = []
    for alarm in report.alarms:
        named = [(e.step, e.rollout) for e in alarm.evidence]
        places = [(step, n) for step, n in named if step is not None and n is not None]
        if places:
            found.append((places[0], f"An example of {alarm.hypothesis} {alarm.name}."))
    return found


def _of_disagreement(trace: Trace) -> list[tuple[tuple[int, int], str]]:
    steps = logprobs.some_steps(trace, most=LOOKED_AT)
    try:
        gaps = logprobs.recorded(trace, steps)
    except NotRecorded:
        return []
    if not len(gaps):
        return []
    mean = _by_rollout(np.abs(gaps.gap), gaps.rollout, len(gaps.place))
    among = f"of {int(np.isfinite(mean).sum()):,} rollouts in {len(steps)} steps"
    worst, best = int(np.nanargmax(mean)), int(np.nanargmin(mean))
    return [
        (gaps.place[worst], f"Sampler and trainer differ most, {among}: {_size(mean[worst])}."),
        (gaps.place[best], f"They differ least, {among}: {_size(mean[best])}."),
    ]


def _by_rollout(values: np.ndarray, rollout: np.ndarray, n: int) -> np.ndarray:
    count = np.bincount(rollout, minlength=n)
    total = np.bincount(rollout, values, minlength=n)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _size(value: float) -> str:
    return f"{value:.3g} nat a token"
