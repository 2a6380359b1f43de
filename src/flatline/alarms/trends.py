"""The curves that are watched, and what of them is an alarm.

Two things must hold: the test of `sequential` is certain that the curve fell, and it fell by what
matters. The error of all curves together, over all steps, is at most `ERROR`. The unit of the
reward is a group, one visit to one prompt; its rollouts are not independent. Other curves have one
value a step, and so has the reward of a log.

A healthy policy may grow surer, briefer and leave its reference, too: of entropy, length and KL
only a collapse is an alarm, many times beyond what healthy runs do.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from flatline.alarms.alarm import TREND, Alarm
from flatline.alarms.sequential import RECENT, Falling
from flatline.errors import NotRecorded
from flatline.hypotheses.kl_unit import BROKEN
from flatline.hypotheses.trend import SMALLEST, STIFFEST, by_unit, with_next
from flatline.trace import Trace

ERROR = 0.01
"""Chance that any curve of a run without a fall is said to fall, at any of its steps."""
TIMES = 10.0
"""A collapse divides by so much; an explosion multiplies. Healthy runs of the lab: at most 3."""
SHORTENED = 5.0
"""The same for lengths. Healthy: at most 2."""
RAW = 0.1
"""Correlation of a row of a log with the next below which it counts as raw. Eight real logs: at
most 0.1. `python benchmarks/alarms.py noise` has what comes of it where the truth is 0.5 or 0.9."""
STEEP = 8.0
"""A fall of so many times the noise beside it is no accident of smoothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One that is watched."""

    column: str
    """Of the table `steps`."""
    name: str
    """Of the alarm."""
    share: float
    """Of `ERROR`."""
    matters: Callable[[float, float, float], bool]
    """Whether a change matters: mean before, mean since, and the span of all values."""
    text: str
    """What is said, with `{before}`, `{since}` and `{step}`."""
    rises: bool = False
    """Whether up is bad."""


CURVES = (
    Curve(
        column="reward",
        name="reward-falls",
        share=0.4,
        matters=lambda before, since, span: before - since >= SMALLEST * max(1.0, span),
        text="The training reward falls for certain: {before} before step {step}, {since} since.",
    ),
    Curve(
        column="entropy",
        name="entropy-gone",
        share=0.2,
        matters=lambda before, since, _: since < before / TIMES,
        text="The entropy collapses: {before} before step {step}, {since} since. What the policy "
        "is sure of it no longer explores.",
    ),
    Curve(
        column="completion_length",
        name="answers-vanish",
        share=0.2,
        matters=lambda before, since, _: since < before / SHORTENED,
        text="Completions shrink to {since} tokens; before step {step} they had {before}.",
    ),
    Curve(
        column="kl",
        name="kl-explodes",
        share=0.2,
        matters=lambda before, since, _: since > BROKEN and since > TIMES * before,
        text="The KL to the reference explodes: {before} nats a token before step {step}, {since} "
        "since.",
        rises=True,
    ),
)


@dataclass(slots=True)
class Watched:
    """One curve of one run, as far as it was seen."""

    curve: Curve
    alone: bool = True
    """Whether a step has one value: then rows of a log may be alike, and count for fewer."""
    told: bool = False
    _steps: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _test: Falling = field(default_factory=Falling)

    def add(self, step: int, values: np.ndarray) -> Alarm | None:
        """The values of one step."""
        self.alone = self.alone and len(values) == 1
        for value in values[~np.isnan(values)].tolist():
            begins = not self._steps or self._steps[-1] != step
            self._steps.append(step)
            self._values.append(value)
            self._test.add(-value if self.curve.rises else value, begins=begins)
        return None if self.told or not self._certain() else self._alarm(step)

    def _certain(self) -> bool:
        enough = 1 / (ERROR * self.curve.share)
        if self._test.odds < enough:
            return False
        if not self.alone or self.curve.column != "reward":  # the others must fall manyfold
            return True
        values = np.array(self._values)
        alike = _rows_in_one(values, self._test.since)
        return alike == 1 or _odds(_means(values, alike)) >= enough

    def _alarm(self, step: int) -> Alarm | None:
        at = self._test.since
        values = np.array(self._values)
        before = float(values[max(0, at - max(RECENT)) : at].mean())
        since = float(values[at:].mean())
        if not self.curve.matters(before, since, float(np.ptp(values))):
            return None
        self.told = True
        said = {"before": f"{before:.3g}", "since": f"{since:.3g}", "step": self._steps[at]}
        text = self.curve.text.format(**said)
        return Alarm(step=step, level=TREND, code="", name=self.curve.name, text=text)


class Trends:
    """All curves of one run."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}
        self._seen = -1
        """The latest step that was added."""

    @property
    def seen(self) -> int:
        """The latest step that is known here."""
        return self._seen

    def add(self, trace: Trace) -> list[Alarm]:
        """What turned in the steps of a trace that were not seen yet."""
        series = dict(_series(trace, self._seen))
        steps = sorted({step for values in series.values() for step in values})
        found = [alarm for step in steps for alarm in self._step(step, series)]
        self._seen = max([self._seen, *steps])
        return found

    def _step(self, step: int, series: Mapping[Curve, Mapping[int, np.ndarray]]) -> Iterator[Alarm]:
        for curve, values in series.items():
            if step in values:
                watched = self._watched.setdefault(curve.name, Watched(curve))
                alarm = watched.add(step, values[step])
                if alarm:
                    yield alarm


def _rows_in_one(values: np.ndarray, at: int) -> int:
    """Rows of a log that are surely worth one that is independent of the others. The fall itself,
    which makes rows alike on either side of it, is taken out; where it is steep, 1."""
    sides = values[:at], values[at:]
    rest = np.concatenate([side - side.mean() for side in sides])
    if sides[0].mean() - sides[1].mean() > STEEP * rest.std(ddof=2):
        return 1
    beside = with_next(rest)
    # Few rows, and two means, make it seem less. Differences know no mean, and are noisier.
    beside += 2 * (1 + 3 * max(beside, 0.0)) / len(values)
    between = 1 + 2 * with_next(np.concatenate([np.diff(side) for side in sides]))
    close = (beside + between) / 2
    if close < RAW:
        return 1
    close = min(close + 1 / math.sqrt(len(values)), STIFFEST)
    return 2 * math.ceil((1 + close) / (1 - close))


def _means(values: np.ndarray, rows: int) -> np.ndarray:
    """Of so many rows each; what is left over at the end waits for more."""
    whole = len(values) // rows * rows
    return np.asarray(values[:whole].reshape(-1, rows).mean(axis=1))


def _odds(values: np.ndarray) -> float:
    test = Falling()
    for value in values.tolist():
        test.add(value)
    return test.odds


def _series(trace: Trace, after: int) -> Iterator[tuple[Curve, dict[int, np.ndarray]]]:
    """Of each curve that is known, the values of every step after one."""
    for curve in CURVES:
        try:
            values, step = by_unit(trace) if curve.column == "reward" else _rows(trace, curve)
        except NotRecorded:
            continue
        new = np.isfinite(step) & (step > after)
        order = np.argsort(step[new], kind="stable")
        numbers, first = np.unique(step[new][order], return_index=True)
        split = np.split(values[new][order], first[1:])
        yield curve, {int(n): part for n, part in zip(numbers, split, strict=True) if n > 0}


def _rows(trace: Trace, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    return trace.steps[curve.column], trace.steps["step"]
