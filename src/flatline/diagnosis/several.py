"""Several runs beside each other: what each comes to, and what differs between them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatline.diagnosis.answer import headline_of, named
from flatline.diagnosis.report import Report, diagnose
from flatline.errors import FlatlineError
from flatline.stats import mean_of_units
from flatline.trace import Trace
from flatline.trace.importers import open_log

COLUMNS = {
    "reward": "reward",
    "completion_length": "tokens of a completion",
    "entropy": "entropy",
    "kl": "KL",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "truncated_share": "share cut off",
    "zero_std_share": "share of groups without a difference",
}
"""Columns whose last third is compared -> what they are called."""
FEWEST, BLOCKS, LATE = 60, 12, 8
"""Steps that two logs must share to be compared step by step, stretches of them, and the part of
them that is their end."""
TIMES = 2.0
"""Factor between the smallest and the largest from which on it is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """The reports of several runs."""

    names: tuple[str, ...]
    """Short names, one each, in the order given."""
    reports: tuple[Report, ...]
    differs: tuple[str, ...]
    """What differs, a sentence each."""
    unread: Mapping[str, str]
    """Files that are no log -> why."""

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `--json` prints."""
        return {
            "version": 1,
            "runs": [report.to_json() for report in self.reports],
            "differs": list(self.differs),
            "unread": dict(self.unread),
        }


def diagnose_several(runs: Sequence[str], *, correct: str | None = None) -> Several:
    """Every run by itself, and what differs. What is no log is left out, and said."""
    traces: dict[str, Trace] = {}
    unread: dict[str, str] = {}
    for run in runs:
        try:
            traces[run] = open_log(run)
        except FlatlineError as error:
            unread[run] = str(error).splitlines()[0]
    reports = [diagnose(trace, correct=correct, name=run) for run, trace in traces.items()]
    names = _short_names(list(traces))
    by_name = dict(zip(names, traces.values(), strict=True))
    told = dict(zip(names, reports, strict=True))
    return Several(
        names=tuple(names),
        reports=tuple(reports),
        differs=(
            *_settings(by_name),
            *_trends(told),
            *_causes(told),
            *_columns(by_name),
            *_side_by_side(by_name),
        ),
        unread=unread,
    )


def trend_in_short(report: Report) -> str:
    """`rises by +0.27 [+0.19, +0.35]`, or why that cannot be said."""
    trend = report.trend
    if trend is None:
        return "no history"
    change = trend.change
    word = "falls" if trend.falls else "rises" if trend.rises else "flat" if trend.flat else "open"
    return f"{word}: {change.value:+.3g} [{change.low:+.3g}, {change.high:+.3g}]"


def answer_in_short(report: Report) -> str:
    """The headline, with the code of its cause."""
    codes = ", ".join(named(one) for one in report.causes)
    return f"{headline_of(report)} ({codes})" if codes else headline_of(report)


def _short_names(paths: list[str]) -> list[str]:
    """The last part of each path, as much of it as tells them apart."""
    for parts in range(1, 9):
        names = ["/".join(Path(path).parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path} ({at})" for at, path in enumerate(paths, 1)]


def _settings(traces: Mapping[str, Trace]) -> Iterator[str]:
    names = sorted({name for trace in traces.values() for name in trace.settings})
    for name in names:
        values = {run: trace.settings.get(name) for run, trace in traces.items()}
        known = {run: value for run, value in values.items() if value is not None}
        if len(known) > 1 and len({repr(value) for value in known.values()}) > 1:
            yield f"`{name}`: {_listed(known, str)}."


def _trends(reports: Mapping[str, Report]) -> Iterator[str]:
    ways = {run: trend_in_short(report).partition(":")[0] for run, report in reports.items()}
    if len(set(ways.values())) > 1:
        yield f"The reward: {_listed(ways, str)}."


def _causes(reports: Mapping[str, Report]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for run, report in reports.items():
        for cause in report.causes:
            found.setdefault(named(cause), []).append(run)
    for code, runs in found.items():
        if len(runs) < len(reports):
            yield f"{code} only in {', '.join(runs)}."


def _columns(traces: Mapping[str, Trace]) -> Iterator[str]:
    for column, called in COLUMNS.items():
        last = {run: _late(trace, column) for run, trace in traces.items()}
        known = {run: value for run, value in last.items() if value is not None}
        low, high = (pick(known.values(), default=0.0) for pick in (min, max))
        if len(known) > 1 and low >= 0 and high > TIMES * low:
            yield f"The {called}, last third: {_listed(known, lambda value: f'{value:.3g}')}."


def _side_by_side(traces: Mapping[str, Trace]) -> Iterator[str]:
    """The rewards of two logs at the steps that both have: the rest is of one alone."""
    if len(traces) != 2 or any(len(trace.rollouts) for trace in traces.values()):
        return
    rewards = [_reward_by_step(trace) for trace in traces.values()]
    shared = sorted(rewards[0].keys() & rewards[1].keys())
    if len(shared) < FEWEST:
        return
    one, other = ([reward[step] for step in shared] for reward in rewards)
    # Neighbouring steps wander together, so a stretch of them is one observation.
    apart = [float(part.mean()) for part in np.array_split(np.subtract(one, other), BLOCKS)]
    difference = mean_of_units(apart)
    certain = difference.low > 0 or difference.high < 0
    first, last = traces
    yield (
        f"At the {len(shared)} steps that both have, the reward of {first} minus that of {last} "
        f"is {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
        f"{'' if certain else ', so neither is certainly better'}."
    )
    for name, reward in zip(traces, rewards, strict=True):
        if alone := sum(step > shared[-1] for step in reward):
            late = len(shared) // LATE
            ends = f"{np.mean(one[-late:]):.3f} and {np.mean(other[-late:]):.3f}"
            yield (
                f"The last {alone} steps are in {name} alone, with nothing to compare; in the "
                f"last {late} that both have, the rewards are {ends}."
            )


def _reward_by_step(trace: Trace) -> dict[float, float]:
    if "reward" not in trace.steps:
        return {}
    rows = zip(trace.steps["step"], trace.steps["reward"], strict=True)
    return {float(step): float(reward) for step, reward in rows if np.isfinite(reward)}


def _late(trace: Trace, column: str) -> float | None:
    if column not in trace.steps:
        return None
    known = trace.steps[column][np.isfinite(trace.steps[column])]
    return float(known[-max(1, len(known) // 3) :].mean()) if len(known) else None


def _listed(values: Mapping[str, Any], shown: Callable[[Any], str]) -> str:
    return ", ".join(f"{shown(value)} in {run}" for run, value in values.items())
