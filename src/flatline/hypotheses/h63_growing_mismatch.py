"""Sampler and trainer begin as close as their precision allows, and drift apart with every step.

## What goes wrong
A sampler in FP8 or with other quantised weights is off by a little from the start, which is usual
and does no harm. If that gap grows, something adds up: small updates that are lost in every
delivery, scales that were measured once and no longer fit, a policy that moves to where rounding
matters more. A run that was healthy for its first hundred steps then collapses, and no single step
of it looks unusual.

## Sign
The recorded gap, or the KL between the two that a log has (prime-rl's `mismatch_kl`), step by step,
never smoothed: the last third of the steps against the first. Suspected if it has certainly more
than doubled, began as H20 allows (below 0.005 nat in float32, 0.05 in 16 bits) and is certainly
above that limit at the end (0.01 for a logged KL, if the reward falls).

It is a matter of delivery instead if the two agree to rounding before the first update, if rollouts
name older weights, or if the sampler still has those of the start. Healthy in float32: no growth
(0.95 times over 40 steps), and never above 1e-6; quantised again to 8 bits at every delivery: 1.0
times, at 0.0026 nat.

## Probe
None: on the first batch the gap is as it should be.

## Experiment
A run with the planted fault against the same without it, matched seeds.

## Fix
Quantise again from the trainer's full weights at every delivery, scales too (those of an FP8 cache
as well); correct token by token with the sampler's log-probs meanwhile, and watch the gap.

## Not to be confused with
H20 numeric-mismatch: too large from the start; one that is large and flat belongs there. H06, H17,
H18 and H19: the two agree until the first update, or rollouts name older weights. H24
learning-rate: the policy is destroyed within a few steps, and the gap with it.

## References
Precision-RL issue 10 (1e-3 to 1 over a run of "Defeating the Training-Inference Mismatch via FP16",
arXiv 2510.26788); open-instruct issue 1473; verl pull request 7519 (FP8 rollouts); miles pull
request 1678 (an FP8 gap that is large and flat). "Your Efficient RL Framework Secretly Brings You
Off-Policy RL Training" (Yao et al., 2025).
"""

import math
import re

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.column_movement import change_of, ends, surely
from flatline.hypotheses.course import alike, stretches
from flatline.hypotheses.h20_numeric_mismatch import APART, APART_BF16
from flatline.hypotheses.logprobs import ROUNDING, never_left_the_start
from flatline.hypotheses.trend import FEWEST, thirds, trend_of, widened
from flatline.hypotheses.weights import allowed_lag, names_newest, trains_later
from flatline.stats import Estimate, difference_of_means, mean_of_units
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain
from flatline.trace.settings import is_half

GROWN = 2.0
"""Times the gap of the first third. Healthy: 0.95 to 1.04."""
BEGINNING = 4
"""Steps that tell how close the two were before anything grew. The first third of a long run holds
much of the growth."""
SMOOTHED = 0.9
"""How alike neighbouring steps of a log are, from which on nothing tells growth from a curve that
was smoothed; below, they count as so many fewer."""
FAR = 0.01
"""A KL of the two that no rounding explains, where the reward falls: a KL is half the square of the
gap, so that this is a gap of 0.1 nat, twice what 16 bits may be off. Runs that learn have been seen
to bear it, so that otherwise only more is suspected."""
LOGGED = ("mismatch_kl", "mismatch_kl/mean", "mismatch_kl/all/mean")
"""A KL between the two, as prime-rl logs it; below the gap itself, where that is small."""
_AGE = re.compile(r"off.?policy_?(level|steps|lag)|async_?level|stale|version_lag")
"""Names of how many updates the sampler is behind."""
IN_A_LOG = (
    "Check what the sampler runs: weights that get older and older, another precision, or "
    "quantised weights that are not refreshed. Meanwhile correct with the sampler's log-probs."
)

OLDER = (
    "Lower the limit on how many updates the sampler may be behind, and go on from a checkpoint "
    "before the two grew apart. Meanwhile correct with the sampler's log-probs."
)


class GrowingMismatch(Hypothesis):
    id = "H63"
    name = "growing-mismatch"
    headline = "Your sampler and your trainer drift apart with every step."
    explains = ("H06", "H18", "H19", "H20", "H22", "H24", "H29", "H30")
    meaning = "The trainer improves a policy that the sampler is further from at every step."
    fix = "Quantise the sampler's weights again from the trainer's at every delivery, scales too."
    mechanism = "The gap of sampler and trainer grows; in the other arm it stays."

    def sign(self, trace: Trace) -> Finding:
        """Has the gap certainly grown beyond what rounding is allowed?"""
        step, gap = trace.steps["step"], _gap(trace)
        known = np.isfinite(gap) & (gap > 0)
        if len(trace.rollouts):  # a later pass over the same completions is behind by design
            known &= np.isin(step, trace.rollouts["step"])
        step, gap = step[known], gap[known]
        parts = thirds(gap, step)
        if parts is None:
            return self.too_little(f"{FEWEST - len(gap)} more steps with a gap are needed")
        close = 0.0 if len(trace.rollouts) else alike(np.log(gap))
        if close > SMOOTHED:
            return self.too_little("the gap was smoothed before it was logged")
        what = "gap" if "logprob_gap" in trace.steps else "KL"
        growth = widened(
            difference_of_means(np.log(parts.early), np.log(parts.late)), (1 + close) / (1 - close)
        )
        if not np.isfinite(growth[:3]).all():
            return self.too_little("steps whose gaps differ are needed")
        value, low, high = map(math.exp, growth[:3])
        times = Estimate(value, low, high, growth.n)
        early, late = (mean_of_units(part.tolist()) for part in (parts.early, parts.late))
        limit = APART_BF16 if is_half(trace.settings) is not False else APART
        if what == "KL" and (trend := trend_of(trace)) is not None and trend.falls:
            limit = min(limit, FAR)
        began = float(gap[: min(BEGINNING, len(parts.early))].mean())
        grown = times.low > GROWN and began <= limit < late.low
        other = _other_reason(trace, step, gap) if grown else ""
        if other:
            return self.too_little(other)
        older = _older(trace) if grown else ""
        return self.found(
            Level.SUSPECT if grown else Level.OK,
            f"The {what} between sampler and trainer goes from {early.value:.2g} to "
            f"{late.value:.2g} nat per token over {parts.steps} steps: {times.value:.2g} "
            f"[{times.low:.2g}, {times.high:.2g}] times. It began at {began:.2g}."
            f"{_since(trace, step, gap) + older if grown else ''}",
            measured=times,
            expected=f"below {GROWN:g} times, or below {limit:g} nat",
            severity=late.value / limit,
            fix=None if len(trace.rollouts) else OLDER if older else IN_A_LOG,
        )


def _gap(trace: Trace) -> np.ndarray:
    """The recorded gap, or the KL that a log has instead."""
    logged = [name for name in trace.metric_names if plain(name) in LOGGED]
    if "logprob_gap" in trace.steps or len(trace.rollouts) or not logged:
        return trace.steps["logprob_gap"]
    return trace.metric(logged[0])


def _since(trace: Trace, step: np.ndarray, gap: np.ndarray) -> str:
    """Since when a log's gap is twice that of the start, and whether the reward fell later."""
    if len(trace.rollouts):
        return ""
    third = gap[: len(gap) // 3]
    low = np.flatnonzero(gap <= GROWN * float(np.median(third)))
    if low[-1] + 1 >= len(gap):
        return ""
    since = float(step[low[-1] + 1])
    trend = trend_of(trace)
    known = np.isfinite(trace.steps["reward"]) if "reward" in trace.steps else np.zeros(0, bool)
    parts = stretches(trace.steps["reward"][known]) if trend and trend.falls else []
    turn = float(trace.steps["step"][known][parts[-1].first]) if len(parts) > 1 else -math.inf
    first = f"; the reward fell later (step {turn:g})" if turn > since else ""
    return f" Since step {since:g} it is more than twice what it was at first{first}."


def _older(trace: Trace) -> str:
    """Which columns of a log say that the sampler's weights are older and older, in words."""
    if len(trace.rollouts):
        return ""
    step = trace.steps["step"]
    lags = {name: trace.metric(name) for name in trace.metric_names if _AGE.search(plain(name))}
    rising = {n: ends(v, step) for n, v in lags.items() if surely(change_of(v, step)) > 0}
    told = " and ".join(f"`{n}` goes from {a:.3g} to {b:.3g}" for n, (a, b) in rising.items())
    return f" The sampler's weights are older and older: {told}." if told else ""


def _other_reason(trace: Trace, step: np.ndarray, gap: np.ndarray) -> str:
    """Why a gap that grows would not be this; empty where it would."""
    if step[0] > 1:
        return "how far apart the two were at step 1 is not known"
    if gap[0] <= ROUNDING:
        return "the two agree before the first update: what parts them is the delivery; see H06"
    if trains_later(trace.settings):
        return "a generation serves several updates, so that some rollouts are trained after one"
    if len(trace.rollouts) and (allowed_lag(trace) or not names_newest(trace, step).all()):
        return "rollouts name older weights; see H06 and H17"
    if never_left_the_start(trace) is not None:
        return "the sampler still has the weights of the start; see H06"
    return ""
