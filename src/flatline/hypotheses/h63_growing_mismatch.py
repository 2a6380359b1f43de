"""Sampler and trainer begin as close as their precision allows, and drift apart with every step.

## What goes wrong
A sampler in FP8 or with other quantised weights is off by a little from the start, which is usual
and does no harm. If that gap grows, something adds up: small updates that are lost in every
delivery, scales that were measured once and no longer fit, a policy that moves to where rounding
matters more. A run that was healthy for its first hundred steps then collapses, and no single step
of it looks unusual.

## Sign
The recorded gap, or what a log has of it (the KL between the two, as prime-rl's `mismatch_kl`; how
far the probabilities of the sampled tokens differ, as verl's `rollout_probs_diff_mean`, or what
their correlation lacks to 1; how far the mean importance weight is off 1), step by step, never
smoothed: the last third of the steps against the first. Suspected if it has certainly more than
doubled, began as H20 allows (below 0.005 nat in float32, 0.05 in 16 bits) and is certainly above
that limit at the end (0.01 for a logged KL, if the reward falls; 0.05 for what is no nat). In a log
whose reward falls, it must have doubled before that: what breaks a policy parts the two as well.

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
learning-rate: the policy is destroyed within a few steps, and the gap with it. H43
behaviour-collapse: what a log shows of a policy that breaks after the two have parted.

## References
Precision-RL issue 10 (1e-3 to 1 over a run of "Defeating the Training-Inference Mismatch via FP16",
arXiv 2510.26788); open-instruct issue 1473; verl pull request 7519 (FP8 rollouts); miles pull
request 1678 (an FP8 gap that is large and flat). "Your Efficient RL Framework Secretly Brings You
Off-Policy RL Training" (Yao et al., 2025).
"""

import math
import re
from dataclasses import replace

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
AS_FAR = 0.05
"""Limit on what has no unit of its own. A probability moves by less than its logarithm, and a mean
weight by less than the weights: whoever is above it is above the limit of 16 bits. For what a
correlation lacks to 1 it is a guess; healthy: 0.001."""
TURNED = 0.1
"""Share of its fall by which a reward may be below its best before it is said to have turned."""
_SIDES = r"rollout|sampl|vllm|sglang|infer|mismatch|generat"
_LOGGED = (
    ("KL", r"(mismatch|rollout_corr|rollout_train|train_rollout)(_|/|/\w+_)kl(/all)?(/mean)?"),
    ("gap", rf".*({_SIDES}).*log_?p(rob)?s?_abs_diff(erence)?([/_]mean)?"),
    (
        "difference of probabilities",
        rf".*({_SIDES}).*(?<!log)(?<!log_)probs?_(abs_)?diff([/_]mean)?",
    ),
    ("lack of correlation", rf".*({_SIDES}).*probs?_(pearson_)?corr(elation)?([/_]mean)?"),
    (
        "distance of the mean importance weight from 1",
        r"(.*/)?(importance_sampling_ratio|(rollout_is|tis)(_weights?|_ratio)?)([/_]mean)?",
    ),
)
"""What logs have of the gap, by their names for it, what says most first. Only means: the largest
of so many tokens is no measure of all."""
_TO_ONE = frozenset(name for name, _ in _LOGGED[3:])
"""What is 1 where the two agree."""
_NATS = frozenset(("KL", "gap"))
_AGE = re.compile(r"off.?policy_?(level|steps|lag)|async_?level|stale|version_lag")
"""Names of how many updates the sampler is behind."""
IN_A_LOG = (
    "Check what the sampler runs: weights that get older and older, another precision, or "
    "quantised weights that are not refreshed. Meanwhile correct with the sampler's log-probs."
)

OF_WHAT_BROKE = ("H43",)
"""What is also explained in a log whose reward falls after the two have parted."""
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
        step, (what, gap) = trace.steps["step"], _gap(trace)
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
        growth = widened(
            difference_of_means(np.log(parts.early), np.log(parts.late)), (1 + close) / (1 - close)
        )
        if not np.isfinite(growth[:3]).all():
            return self.too_little("steps whose gaps differ are needed")
        value, low, high = map(math.exp, growth[:3])
        times = Estimate(value, low, high, growth.n)
        early, late = (mean_of_units(part.tolist()) for part in (parts.early, parts.late))
        limit = _limit(trace, what)
        began = float(gap[: min(BEGINNING, len(parts.early))].mean())
        grown = times.low > GROWN and began <= limit < late.low
        if times.low > GROWN and began > limit:
            return self.too_little(f"the two are {began:.2g} apart from the start; see H20 and H21")
        other = _other_reason(trace, step, gap) if grown else ""
        if other:
            return self.too_little(other)
        older = _older(trace) if grown else ""
        nats = what in _NATS
        found = self.found(
            Level.SUSPECT if grown else Level.OK,
            f"The {what} between sampler and trainer goes from {early.value:.2g} to "
            f"{late.value:.2g}{' nat per token' if nats else ''} over {parts.steps} steps: "
            f"{times.value:.2g} [{times.low:.2g}, {times.high:.2g}] times. It began at {began:.2g}."
            f"{_since_in_words(trace, step, gap) + older if grown else ''}",
            measured=times,
            expected=f"below {GROWN:g} times, or below {limit:g}{' nat' if nats else ''}",
            severity=late.value / limit,
            fix=None if len(trace.rollouts) else OLDER if older else IN_A_LOG,
        )
        before = grown and _since(trace, step, gap) < _turn(trace) < math.inf
        return replace(found, explains=(*self.explains, *OF_WHAT_BROKE)) if before else found


def _gap(trace: Trace) -> tuple[str, np.ndarray]:
    """The recorded gap, or what a log has of it instead, and what that is."""
    if "logprob_gap" not in trace.steps and not len(trace.rollouts):
        for what, names in _LOGGED:
            for name in trace.metric_names:
                if re.fullmatch(names, plain(name)):
                    values = trace.metric(name)
                    return what, np.abs(1 - values) if what in _TO_ONE else values
    return "gap", trace.steps["logprob_gap"]


def _limit(trace: Trace, what: str) -> float:
    """What the gap may be at the end."""
    if what not in _NATS:
        return AS_FAR
    limit = APART_BF16 if is_half(trace.settings) is not False else APART
    trend = trend_of(trace)
    return min(limit, FAR) if what == "KL" and trend is not None and trend.falls else limit


def _since(trace: Trace, step: np.ndarray, gap: np.ndarray) -> float:
    """Since when a log's gap is twice that of the start."""
    if len(trace.rollouts):
        return math.inf
    third = gap[: len(gap) // 3]
    low = np.flatnonzero(gap <= GROWN * float(np.median(third)))
    return float(step[low[-1] + 1]) if low[-1] + 1 < len(gap) else math.inf


def _turn(trace: Trace) -> float:
    """The step from which on a log's reward is below its best, or, of a curve without certain
    changes, at which it was last about as good as ever; infinite where it does not fall."""
    trend = trend_of(trace)
    if len(trace.rollouts) or trend is None or not trend.falls:
        return math.inf
    known = np.isfinite(trace.steps["reward"])
    step, reward = trace.steps["step"][known], trace.steps["reward"][known]
    parts = stretches(reward)
    best = int(np.argmax([part.mean for part in parts]))
    if best + 1 < len(parts):
        return float(step[parts[best + 1].first])
    rows = max(1, len(reward) // 10)
    level = np.convolve(reward, np.ones(rows) / rows, "valid")
    good = level >= level.max() - TURNED * (level.max() - level[-1])
    return float(step[np.flatnonzero(good)[-1] + rows // 2])


def _since_in_words(trace: Trace, step: np.ndarray, gap: np.ndarray) -> str:
    since, turn = _since(trace, step, gap), _turn(trace)
    if not math.isfinite(since):
        return ""
    later = f"; the reward fell later (step {turn:g})" if since < turn < math.inf else ""
    return f" Since step {since:g} it is more than twice what it was at first{later}."


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
    if _turn(trace) <= _since(trace, step, gap) < math.inf:
        return "the two part only after the reward fell, as what breaks a policy makes them"
    if never_left_the_start(trace) is not None:
        return "the sampler still has the weights of the start; see H06"
    return ""
