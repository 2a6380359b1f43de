"""Rewards as GRPO compares them: group by group. What several hypotheses ask of them.

The unit of every interval is a group, one visit to one prompt, or a step. Rollouts of one group are
not independent, so they never count.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS, Finding, Level
from flatline.hypotheses.trend import trend_of
from flatline.stats import LEVEL, UNKNOWN, Estimate, mean_of_units, t_score
from flatline.trace import Trace
from flatline.trace.frames import Ragged
from flatline.trace.memo import once

ENOUGH_PROMPTS = 4
"""Prompts none of whose rollouts is trained before that is a rule: where as many as half of the
rollouts were left out, four groups of two would all be so once in 256."""
EQUAL = 1e-6
"""Rewards that differ by less are equal: sums of float32 parts differ in their last bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardGroups:
    """The groups of a trace that have at least two known rewards."""

    rewards: Ragged
    """Known rewards of each group."""
    step: np.ndarray
    """Step of each group."""
    rollout: np.ndarray
    """Number of the first rollout of each group."""
    prompt: np.ndarray
    """Prompt of each group; a number of its own where no prompt was recorded."""
    mean: np.ndarray
    """Mean reward of each group."""
    std: np.ndarray
    """Spread inside each group (ddof 1), as GRPO takes it."""
    equal: np.ndarray
    """Whether all rewards of a group are the same."""
    span: float
    """From the lowest to the highest reward of the run, without the outermost hundredths."""

    @property
    def n(self) -> int:
        """How many groups."""
        return len(self.rewards)


@once
def reward_groups(trace: Trace) -> RewardGroups:
    """The groups that can be compared; groups of one, and rewards that are no number, are not."""
    groups = trace.groups()
    known = groups.known("reward")
    kept = known.sizes > 1
    rewards = known.kept(kept)
    ends = np.quantile(rewards.values, [0.01, 0.99]) if len(rewards) else np.zeros(2)
    return RewardGroups(
        rewards=rewards,
        step=groups.step[kept],
        rollout=groups.rollout[kept],
        prompt=prompts_of(trace)[kept],
        mean=rewards.each(lambda rows: rows.mean(axis=-1)),
        std=rewards.each(lambda rows: rows.std(axis=-1, ddof=1)),
        equal=rewards.each(lambda rows: np.ptp(rows, axis=-1)) < EQUAL,
        span=float(ends[1] - ends[0]),
    )


@once
def prompts_of(trace: Trace) -> np.ndarray:
    """The prompt of each group of the trace, as text; its own number where it has none."""
    groups = trace.groups()
    try:
        named = groups.prompt_id
    except NotRecorded:
        named = np.full(groups.n, None, dtype=object)
    return np.array([f"#{i}" if name is None else str(name) for i, name in enumerate(named)])


def trains_nothing(trace: Trace) -> Level | None:
    """How sure it is that no token is trained; None where some token is, or where it is not known.
    All rollouts of a few prompts may be left out of the loss by chance."""
    if "trained_tokens" not in trace.rollouts:
        return None
    trained = trace.rollouts["trained_tokens"]
    if not len(trained) or not np.all(trained == 0):
        return None
    prompts = len(np.unique(prompts_of(trace)))
    return Level.FAULT if prompts >= ENOUGH_PROMPTS else Level.SUSPECT


def one_turn_only(trace: Trace) -> bool:
    """Whether no completion can go on after what a tool says, and none does."""
    if trace.settings.get("tools") != 0 or "turns" not in trace.rollouts:
        return False
    return bool((trace.rollouts["turns"] <= 1).all())


def reward_rises(trace: Trace) -> bool:
    """Whether the reward certainly rises, so that nothing has to be explained."""
    trend = trend_of(trace)
    return trend is not None and trend.rises


def within_correlation(a: np.ndarray, b: np.ndarray, group: np.ndarray) -> Estimate:
    """Correlation of two columns inside groups; `n` counts groups in which both vary.

    Its variance is measured between groups, and it is never taken to be surer than independent
    rollouts would make it.
    """
    known = np.isfinite(a) & np.isfinite(b)
    index = np.unique(group[known], return_inverse=True)[1]
    a, b = _centred(a[known], index), _centred(b[known], index)
    aa, bb, ab = (np.bincount(index, x) for x in (a * a, b * b, a * b))
    n = int(np.sum((aa > EQUAL**2) & (bb > EQUAL**2)))
    if n == 0:
        return UNKNOWN
    scale = math.sqrt(float(aa.sum()) * float(bb.sum()))
    value = float(np.clip(ab.sum() / scale, -1, 1))
    # What each group adds to the ratio, linearised.
    pull = ab / scale - value / 2 * (aa / aa.sum() + bb / bb.sum())
    error = math.sqrt(float(np.sum(pull**2)) * n / max(n - 1, 1)) / max(1 - value**2, 1e-6)
    independent = 1 / math.sqrt(max(len(a) - len(aa) - 3, 1))
    return correlation_estimate(value, n, max(error, independent))


def standardised(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Values in units of the spread inside their group; NaN where they are all equal."""
    known = np.isfinite(values)
    index = np.unique(group, return_inverse=True)[1]
    size = np.maximum(np.bincount(index, known), 1)
    mean = np.bincount(index, np.where(known, values, 0.0)) / size
    off = np.where(known, values - mean[index], 0.0)
    spread = np.sqrt(np.bincount(index, off**2) / size)[index]
    return np.where(known & (spread > EQUAL), off / np.maximum(spread, EQUAL), np.nan)


def correlation_estimate(value: float, n: int, error: float | None = None) -> Estimate:
    """A correlation over `n` independent units, with Fisher's interval.

    `error` is the standard error after Fisher's transform; that of `n` independent pairs where
    absent.
    """
    if n <= 3:
        return Estimate(value, -math.inf, math.inf, n)
    z = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, value)))
    width = 1 / math.sqrt(n - 3) if error is None else error
    half = t_score(n - 1, LEVEL) * width
    return Estimate(value, math.tanh(z - half), math.tanh(z + half), n)


def mean_of(values: np.ndarray) -> Estimate:
    """Mean of independent values, one a step or a group; those that are no number are left out."""
    known = values[np.isfinite(values)]
    return mean_of_units(known.tolist())


def unless_batch_alarms(
    finding: Finding, sign: Callable[[Trace], Finding], trace: Trace
) -> Finding:
    """What a probe found, or the alarm that the played batch raises by itself."""
    try:
        seen = sign(trace)
    except NotRecorded:
        return finding
    return seen if seen.level in ALARMS else finding


def _centred(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    sizes = np.bincount(index)
    return np.asarray(values - (np.bincount(index, values) / np.maximum(sizes, 1))[index])
