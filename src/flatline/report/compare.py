"""Two runs, or two rollouts, beside each other: what differs, and where do they part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatline.errors import NotRecorded
from flatline.report.charts import SERIES, Chart, figure, label, logarithmic, points
from flatline.report.rollout_view import token_text
from flatline.report.series import Run, bounds_of, heldout_plays
from flatline.report.token_columns import token_columns
from flatline.stats import Estimate, paired_difference, t_score
from flatline.trace import Trace

ERROR = 0.05
"""Chance of seeing two runs part that do not, over all looks together."""
FEWEST = 6
"""Groups on either side below which nothing is said."""
AROUND = 12
"""Tokens shown on either side of the first one that differs."""
METRICS = {
    "reward": "training reward",
    "heldout_reward": "held-out reward",
    "kl": "KL to the reference",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "logprob_gap": "log-prob gap",
    "completion_length": "completion length",
    "truncated_share": "share cut off",
    "zero_std_share": "groups without differences",
    "learning_rate": "learning rate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where the rewards of two runs leave each other."""

    step: int | None
    """First step by which they have; None where they never do."""
    difference: Estimate
    """Second minus first up to then, or over all steps; its interval holds at every look."""
    looks: int
    """Steps at which one looked."""
    text: str
    """The same in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where two rollouts differ first."""

    where: str
    """prompt or completion."""
    at: int
    """Position of the first token that differs."""
    sides: tuple[list[tuple[bool, str]], list[tuple[bool, str]]]
    """The tokens around it: whether it is the one, and its text."""


def parting(a: Trace, b: Trace, second: str = "the second run") -> Parting | None:
    """Where the rewards part, by raw group means; None where there is nothing to compare.

    `second` is what the sentence calls `b`.
    """
    try:
        step, paired, sums = _by_step(a, b)
    except NotRecorded:
        return None
    low, high, mean, n = _intervals(paired, sums)
    usable = n >= FEWEST
    if not usable.any():
        return None
    apart = np.flatnonzero(usable & ((low > 0) | (high < 0)))
    at = int(apart[0]) if len(apart) else len(step) - 1
    found = Estimate(float(mean[at]), float(low[at]), float(high[at]), int(n[at]))
    where = int(step[at]) if len(apart) else None
    text = _said(where, found, len(step), second)
    return Parting(step=where, difference=found, looks=int(usable.sum()), text=text)


def _by_step(a: Trace, b: Trace) -> tuple[np.ndarray, bool, list[np.ndarray]]:
    """Common steps; whether units are paired; cumulative count, sum and sum of squares of each."""
    units = [_units(trace) for trace in (a, b)]
    steps = np.intersect1d(units[0][0], units[1][0])
    keep = _within(units, steps)
    keys = [list(zip(s.tolist(), k.tolist(), strict=True)) for s, k, _ in keep]
    if all(len(set(one)) == len(one) for one in keys) and set(keys[0]) == set(keys[1]):
        first, second = (
            dict(zip(k, v, strict=True)) for k, (_, _, v) in zip(keys, keep, strict=True)
        )
        step = np.array([key[0] for key in keys[0]])
        gains = np.array([second[key] - first[key] for key in keys[0]])
        return steps, True, [_cumulative(step, gains, steps)]
    return steps, False, [_cumulative(s, v, steps) for s, _, v in keep]


def _within(units: list[Any], steps: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    kept = []
    for step, key, value in units:
        mine = np.isin(step, steps) & np.isfinite(value)
        kept.append((step[mine], key[mine], value[mine]))
    return kept


def _units(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, prompt and mean reward of every group; every step, where there are no rollouts."""
    if not len(trace.rollouts):
        step = trace.steps["step"].astype(np.int64)
        return step, np.zeros(len(step), dtype=object), trace.steps["reward"]
    groups = trace.groups()
    reward = trace.rollouts["reward"]
    known = np.isfinite(reward)
    count = np.bincount(groups.index[known], minlength=groups.n)
    total = np.bincount(groups.index[known], weights=reward[known], minlength=groups.n)
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    prompt = groups.prompt_id if "prompt_id" in trace.rollouts else np.arange(groups.n)
    return groups.step, np.asarray(prompt, dtype=object), means


def _cumulative(step: np.ndarray, value: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Count, sum and sum of squares of all values up to every step."""
    at = np.searchsorted(steps, step)
    weights = (None, value, value**2)
    return np.array(
        [np.cumsum(np.bincount(at, weights=one, minlength=len(steps))) for one in weights]
    )


def _intervals(
    paired: bool, sums: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Low, high, mean and n of the cumulative difference, each look at its share of the error."""
    n, mean, variance = zip(*(_moments(one) for one in sums), strict=True)
    if paired:
        difference, error, freedom = mean[0], variance[0], n[0] - 1
    else:
        difference, error = mean[1] - mean[0], variance[0] + variance[1]
        parts = sum(v**2 / np.maximum(c - 1, 1) for v, c in zip(variance, n, strict=True))
        freedom = np.divide(error**2, parts, out=np.ones_like(error), where=parts > 0)
    count = np.min(n, axis=0)
    level = 1 - ERROR / max(int((count >= FEWEST).sum()), 1)
    scores = [t_score(max(one, 1.0), level) for one in freedom.tolist()]
    half = np.array(scores) * np.sqrt(error)
    return difference - half, difference + half, difference, count


def _moments(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count, mean, and variance of the mean."""
    n, total, squares = sums
    mean = total / np.maximum(n, 1)
    spread = np.maximum(squares - n * mean**2, 0) / np.maximum(n - 1, 1)
    return n, mean, spread / np.maximum(n, 1)


def _said(step: int | None, found: Estimate, steps: int, second: str) -> str:
    by = f"{_signed(found)} over {found.n} groups"
    if step is None:
        return (
            f"The rewards do not leave the noise in {steps} common steps: second minus first {by}."
        )
    more = "more" if found.value > 0 else "less"
    return f"By step {step} {second} earns {more}: {by} up to then."


def heldout_difference(a: Run, b: Run) -> Estimate | None:
    """Second minus first at their last evaluations, play by play; None unless both kept their plays
    of the same problems."""
    sides = [heldout_plays(run)[-1:] for run in (a, b)]
    if not all(sides) or sides[0][0].problems != sides[1][0].problems:
        return None
    first, second = (side[0] for side in sides)
    bounds = bounds_of([*first.rewards, *second.rewards])
    return paired_difference(first.rewards, second.rewards, first.problems, bounds=bounds)


def heldout_text(found: Estimate, second: str = "the second run") -> str:
    """The same in a sentence."""
    apart = found.low > 0 or found.high < 0
    end = ("higher" if found.value > 0 else "lower") if apart else "no different"
    return f"On the same {found.n} held-out problems {second} ends {end}: {_signed(found)}."


def _signed(one: Estimate) -> str:
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def settings_that_differ(a: Trace, b: Trace) -> list[tuple[str, Any, Any]]:
    """Every recorded setting, version and fact that is not the same in both."""
    sides = [_flat(trace.run) for trace in (a, b)]
    names = sorted(sides[0].keys() | sides[1].keys())
    pairs = [(name, sides[0].get(name), sides[1].get(name)) for name in names]
    return [(name, one, other) for name, one, other in pairs if one != other]


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: run.get(name) for name in ("fault", "seed", "commit", "source")}
    for part in ("settings", "requested", "versions", "hardware"):
        values = run.get(part)
        for name, value in values.items() if isinstance(values, dict) else ():
            known = part == "requested" and name in {"fault", "seed", *(run.get("settings") or {})}
            if not known and name not in ("output_dir", "run_name"):
                found[f"{part}.{name}"] = value
    return found


def overlays(a: Trace, b: Trace, names: tuple[str, str]) -> list[Chart]:
    """Every metric that both runs recorded, in one chart each."""
    return [
        _overlay(column, title, (a, b), names)
        for column, title in METRICS.items()
        if column in a.steps and column in b.steps
    ]


def _overlay(column: str, title: str, traces: tuple[Trace, Trace], names: tuple[str, str]) -> Chart:
    lines = []
    for trace, name, color in zip(traces, names, SERIES, strict=False):
        known = np.isfinite(trace.steps[column])
        x, y = trace.steps["step"][known], trace.steps[column][known]
        lines.append(points(x, y, label(name), color))
    made = figure(lines, y=title)
    logarithmic(made, np.concatenate([trace.steps[column] for trace in traces]))
    return Chart(
        id=f"compare-{column}", title=title[0].upper() + title[1:], healthy="", figure=made
    )


def fork(a: Trace, b: Trace, at: tuple[int, int], other: tuple[int, int]) -> Fork | None:
    """The first token in which two rollouts (step, number) differ; None where they are the same,
    or where one has no token detail."""
    sides = [token_columns(trace, *place) for trace, place in ((a, at), (b, other))]
    first, second = sides
    if first is None or second is None:
        return None
    for where in ("prompt", "completion"):
        one, two = (x.prompt_ids if where == "prompt" else x.ids for x in (first, second))
        if one is not None and two is not None and not np.array_equal(one, two):
            return _fork(where, (a, b), (one, two))
    return None


def _fork(where: str, traces: tuple[Trace, Trace], ids: tuple[np.ndarray, np.ndarray]) -> Fork:
    short = min(map(len, ids))
    differ = np.flatnonzero(ids[0][:short] != ids[1][:short])
    at = int(differ[0]) if len(differ) else short
    first, second = (
        [
            (place == at, token_text(trace.text(found[place])))
            for place in range(max(at - AROUND, 0), min(at + AROUND + 1, len(found)))
        ]
        for trace, found in zip(traces, ids, strict=True)
    )
    return Fork(where=where, at=at, sides=(first, second))
