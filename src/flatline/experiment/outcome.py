"""What one run came to: every outcome that it recorded, and what every hypothesis says about it.

A run is measured once and for all: the same control run serves several experiments, whatever their
hypothesis and their outcome. `outcome.json` is written last: a run that has it is finished.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from flatline.diagnosis.report import diagnose
from flatline.errors import ConfigError, NotRecorded, TraceError
from flatline.experiment.plan import HELDOUT, LESS, METRIC, REWARD
from flatline.files import json_in, write_atomically
from flatline.heldout import HeldOutScore, read_scores
from flatline.hypotheses import HYPOTHESES
from flatline.stats import Estimate, difference_of_means, paired_difference
from flatline.trace import Trace
from flatline.trace.importers import open_log

OUTCOME_FILE = "outcome.json"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One outcome of one run."""

    value: float
    """What arms are compared by."""
    before: float
    """At the start: the first evaluation, or the mean of the first third of the steps."""
    after: float
    """At the end, likewise."""
    gain: Estimate
    """`after - before` with the interval of this run alone, over its problems or steps."""

    def turned(self) -> Self:
        """The same where less is better."""
        gain = Estimate(-self.gain.value, -self.gain.high, -self.gain.low, self.gain.n)
        return replace(self, value=-self.value, before=-self.before, after=-self.after, gain=gain)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "gain": estimate_from(values["gain"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one hypothesis says about the run."""

    level: str
    """A level of `flatline diagnose`."""
    text: str
    """What was seen."""
    proven: bool
    """Seen directly and not by its effects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run: `outcome.json`."""

    seconds: float
    """Wall time of the command."""
    steps: int
    """Optimizer steps recorded."""
    trace: str
    """The folder of the trace or log; relative to the run's folder if it lies inside."""
    problems_digest: str | None
    """Of the held-out problems; None where they are not known."""
    outcomes: Mapping[str, Measure]
    """All that it recorded, as it was; `measured` finds what a plan names."""
    findings: Mapping[str, Sight]
    """By the code of the hypothesis."""

    def measured(self, name: str) -> Measure | None:
        """The outcome that a plan names, more of it being better; None where there is none."""
        if not name.startswith(LESS):
            return self.outcomes.get(name)
        found = self.outcomes.get(METRIC + name.removeprefix(LESS))
        return found and found.turned()

    def counted(self, name: str) -> Measure:
        """The same of a run that counts: one without it is refused before."""
        found = self.measured(name)
        assert found is not None
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "trace": self.trace,
            "problems_digest": self.problems_digest,
            "outcomes": {name: one.to_json() for name, one in self.outcomes.items()},
            "findings": {code: asdict(one) for code, one in self.findings.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        outcomes = {name: Measure.from_json(one) for name, one in values["outcomes"].items()}
        findings = {code: Sight(**one) for code, one in values["findings"].items()}
        known = {name: value for name, value in values.items() if name != "version"}
        return cls(**{**known, "outcomes": outcomes, "findings": findings})


def measure(folder: Path, trace: Path, *, seconds: float) -> Outcome:
    """Read the trace, or the log, of a run that has ended in `folder`; keep what it came to."""
    read = open_log(trace)
    steps = int(read.steps["step"].max(initial=0)) if len(read.steps) else 0
    if not steps:
        raise TraceError(
            f"The run recorded in {trace} has not a single step, so there is nothing to compare.\n"
            "Let it train at least a few."
        )
    evaluations = read_scores(trace)
    outcome = Outcome(
        seconds=seconds,
        steps=steps,
        trace=_relative(trace, folder),
        problems_digest=digest_of(evaluations[0].problems) if evaluations else None,
        outcomes=dict(_measures(read, evaluations)),
        findings={
            one.hypothesis: Sight(level=one.level.value, text=one.text, proven=one.proven)
            for one in diagnose(read, hypotheses=HYPOTHESES).findings
        },
    )
    write_atomically(folder / OUTCOME_FILE, [json.dumps(outcome.to_json(), indent=2)])
    return outcome


def read_outcome(folder: Path) -> Outcome | None:
    """What a finished run came to; None where it has not finished."""
    path = folder / OUTCOME_FILE
    try:
        values = json_in(path)
        version = values["version"]
        if version == VERSION:
            return Outcome.from_json(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    raise ConfigError(
        f"{path} has version {version!r}; this flatline reads version {VERSION}.\n"
        "The run is not made again, because it may have cost a lot.\n"
        f"Use the flatline that wrote it, or move {folder} away to have it run again."
    )


def estimate_from(values: Mapping[str, Any]) -> Estimate:
    """An estimate as JSON keeps it: an open end is null."""
    ends = (("value", math.nan), ("low", -math.inf), ("high", math.inf))
    value, low, high = (open_ if values[name] is None else values[name] for name, open_ in ends)
    return Estimate(value, low, high, values["n"])


def _measures(trace: Trace, evaluations: Sequence[HeldOutScore]) -> list[tuple[str, Measure]]:
    found = [(HELDOUT, _heldout(trace, evaluations)), (REWARD, _reward(trace))]
    found += [(f"{METRIC}{name}", _metric(trace.metric(name))) for name in trace.metric_names]
    return [(name, one) for name, one in found if one is not None]


def _heldout(trace: Trace, evaluations: Sequence[HeldOutScore]) -> Measure | None:
    """Gain from the first to the last evaluation; play by play where every play is known.

    None where these are known to be of different problems.
    """
    if len(evaluations) > 1:
        first, last = evaluations[0], evaluations[-1]
        if first.problems != last.problems:
            return None  # the difference could be one between the problems
        before, after = first.rewards, last.rewards
        top = max(1.0, *before, *after)
        gain = paired_difference(before, after, first.problems, bounds=(0.0, top))
        return _gained(float(np.mean(before)), float(np.mean(after)), gain)
    try:
        column, step = trace.steps["heldout_reward"], trace.steps["step"]
    except NotRecorded:
        return None
    known = np.isfinite(column)
    if known.sum() < 2:
        return None
    ordered = column[known][np.argsort(step[known], kind="stable")]
    gain = Estimate(float(ordered[-1] - ordered[0]), -math.inf, math.inf, 1)
    return _gained(float(ordered[0]), float(ordered[-1]), gain)


def _gained(before: float, after: float, gain: Estimate) -> Measure:
    return Measure(value=after - before, before=before, after=after, gain=gain)


def _reward(trace: Trace) -> Measure | None:
    """Gain of the training reward, from the raw reward of each step."""
    try:
        thirds = _thirds(trace.steps["reward"])
    except NotRecorded:
        return None
    if thirds is None:
        return None
    before, after, gain = thirds
    return _gained(before, after, gain)


def _metric(values: "np.ndarray[Any, Any]") -> Measure | None:
    """A metric is compared as it ends, since it may have no beginning to speak of."""
    thirds = _thirds(values)
    if thirds is None:
        return None
    before, after, gain = thirds
    return Measure(value=after, before=before, after=after, gain=gain)


def _thirds(values: "np.ndarray[Any, Any]") -> tuple[float, float, Estimate] | None:
    """Means of the first and the last third of the steps that have a value."""
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return None
    third = max(1, len(known) // 3)
    early, late = known[:third], known[-third:]
    return float(early.mean()), float(late.mean()), difference_of_means(early, late)


def digest_of(problems: Sequence[str]) -> str:
    """Of held-out problems: runs that have the same can be compared."""
    return hashlib.sha256(json.dumps(list(problems)).encode()).hexdigest()


def _relative(trace: Path, folder: Path) -> str:
    trace, folder = trace.resolve(), folder.resolve()
    return str(trace.relative_to(folder)) if trace.is_relative_to(folder) else str(trace)
