"""The parts of a reward as columns of a log. What a part is called says nothing here.

The parts are the columns that the trainer keeps for its reward functions; where a log has none, all
columns that no alias knows, that do not count steps and are no KL, which is taken off a reward.
"""

import re
from dataclasses import dataclass

import numpy as np

from flatline.trace import Trace
from flatline.trace.importers.resolve import plain
from flatline.trace.memo import once

FEWEST = 10
"""Rows below which a column that stands is no news."""
_FUNCTION = re.compile(r"rewards/(?P<name>.+?)(/mean)?")
_KL = re.compile(r"(^|[^a-z])kl([^a-z]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The columns that may be parts, in the rows that have a reward and all of them."""

    step: np.ndarray
    reward: np.ndarray
    columns: dict[str, np.ndarray]
    whole: dict[str, np.ndarray]
    """The same in all rows that have them, whatever else those lack."""
    named: bool
    """They are reward functions by the trainer's own word."""

    @property
    def moving(self) -> dict[str, np.ndarray]:
        return {name: values for name, values in self.columns.items() if np.ptp(values) > 0}


@once
def parts_of(trace: Trace) -> Parts | None:
    """None where there is nothing to speak of."""
    step, reward = trace.steps["step"], trace.steps["reward"]
    functions = {_short(name): name for name in trace.metric_names if _short(name)}
    names = functions or {
        name: name for name in trace.run.get("unrecognised") or () if not _KL.search(plain(name))
    }
    columns = {short: trace.metric(name) for short, name in names.items()}
    rewarded = np.isfinite(reward)
    if rewarded.sum() < FEWEST:
        return None
    there = {n: v for n, v in columns.items() if np.isfinite(v[rewarded]).mean() > 0.5}
    known = np.logical_and.reduce([rewarded, *(np.isfinite(v) for v in there.values())])
    if not there or known.sum() < FEWEST:
        return None
    kept = {name: values[known] for name, values in there.items()}
    paid = reward[known] - reward[known].mean()
    # What goes with the reward comes first. No name decides: what is renamed is told the same.
    kept = dict(sorted(kept.items(), key=lambda one: (-float(one[1] @ paid), one[1].tolist())))
    return Parts(
        step=step[known],
        reward=reward[known],
        whole={name: values[np.isfinite(values)] for name, values in there.items()},
        columns=kept if functions else {n: v for n, v in kept.items() if not _counter(v)},
        named=bool(functions),
    )


def _short(name: str) -> str:
    """What the user calls a reward function; empty where the column is none."""
    known = _FUNCTION.fullmatch(plain(name))
    if known is None or re.search("/ ?std$", name):
        return ""
    return re.sub(r"^.*?rewards ?/ ?| ?/ ?mean$", "", name)


def _counter(values: np.ndarray) -> bool:
    return bool((np.diff(values) > 0).all())
