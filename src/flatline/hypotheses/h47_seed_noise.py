"""The run is too short or its batch too small to show whether it learns.

## What goes wrong
With 8 prompts a step the mean reward of a step has an error of about 0.06, and two windows of 20
steps differ by 0.06 by chance. A smoothed curve makes trends out of that: a slope test on a moving
average (0.9) finds one in two of three runs without any. Weeks go into differences that are none.

## Sign
Never an alarm: it is no cause. Noted where the smallest change that the run could have shown (the
half width of the interval between its first and last third of steps) is above 0.05, with the number
of steps that would be needed; and where the logged reward is a smoothed curve (correlation of
neighbouring steps certainly above 0.8, while nothing else explains it and their differences do not
exclude it: a curve that goes far is alike from row to row, too). The smallest change counts
a smoothed log by the raw rows that it is worth, which are few. Where the reward of a log jumps
once, from one row to the next, the longer side of that is judged alone: another scale or other data
begin there, and what lies between is no change that more steps would show.

## Probe
None: one batch has no history.

## Experiment
The prompts of a step against twice as many (`gradient_accumulation_steps`), over matched seeds with
the criterion written first; outcome is the held-out reward. `flatline investigate` also asks for
runs at learning rate 0 and with a random reward.

## Fix
More prompts a step, more steps, more held-out problems, paired comparisons on the same problems; no
test on a smoothed curve.

## Not to be confused with
H32 zero-variance-groups: most of the batch gives no gradient. H44 data-order: the curve has a trend
that the order of the data makes.

## References
A Sober Look (2504.07086); Spurious Rewards (2506.10947: a random reward gained 21 points).
Threshold: the smallest change that matters is that of the trend, 0.05. It never alarms (0 of 26).
"""

import math
from dataclasses import replace

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import EQUAL, correlation_estimate
from flatline.hypotheses.trend import FEWEST, alike_at_most, rows_in_one, trend_of
from flatline.stats import rounding_of
from flatline.trace import Trace

SMOOTHED = 0.8
"""Correlation of a logged reward with the one before, the trend taken out. Raw: about 0."""
STEPS = 40
"""Steps that must be there to tell a smoothed curve."""
JUMP = 3.0
"""Times the next largest difference of neighbouring rows, from which on one is a jump. Of 1,000
raw curves of 40 to 400 rows none has one above 1.8; a smoothed curve has many steps of nearly one
size, whatever it follows."""


class SeedNoise(Hypothesis):
    id = "H47"
    name = "seed-noise"
    headline = "Your run is too short, or its batches too small, to show learning."
    meaning = "The differences that are seen are those that chance makes."
    fix = "Compare at least three seeds on the same held-out problems; take more prompts a step."
    mechanism = "A step's mean reward is noise; in the other arm it is less so."

    def sign(self, trace: Trace) -> Finding:
        """What could this run have shown?"""
        where, trace = _beside_a_jump(trace)
        found = self._shown(trace)
        return replace(found, text=f"{where}{found.text}")

    def _shown(self, trace: Trace) -> Finding:
        trend, smoothed = trend_of(trace), _smoothed(trace)
        if trend is None:
            return self.too_little(f"a run of at least {FEWEST} steps is needed")
        moves = trend.rises or trend.falls
        if not math.isfinite(trend.change.high):
            return self.found(
                Level.OK if moves else Level.NOTE,
                smoothed or trend.text,
                looked_at=trend.change.n,
            )
        half = (trend.change.high - trend.change.low) / 2
        text = (
            f"A change of {half:.3f} between the first and the last third would have shown; "
            f"{trend.change.value:+.3f} was seen."
        )
        if smoothed:
            return self.found(Level.NOTE, f"{smoothed} {text}", measured=half)
        if half <= trend.smallest or moves or trend.change.low > 0:
            return self.found(Level.OK, text, measured=half, looked_at=trend.change.n)
        return self.found(
            Level.NOTE,
            f"{text} What matters is {trend.smallest:.2g}: that takes more steps, or more prompts "
            "a step.",
            measured=half,
            expected=f"below {trend.smallest:.2g}",
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """The prompts of a step against twice as many."""
        passes = config.gradient_accumulation_steps
        return Setting(
            "gradient_accumulation_steps",
            2 * passes,
            control=f"{passes} backward passes a step",
            treated=f"{2 * passes} backward passes a step",
        )


def _beside_a_jump(trace: Trace) -> tuple[str, Trace]:
    """The longer side of the one jump of a log's reward, after words that say which that is."""
    if "reward" not in trace.steps or len(trace.rollouts):
        return "", trace
    known = np.isfinite(trace.steps["reward"])
    reward, step = trace.steps["reward"][known], trace.steps["step"][known].astype(int)
    apart = np.abs(np.diff(reward))
    if len(reward) < STEPS:
        return "", trace
    if apart.max() <= max(JUMP * np.partition(apart, -2)[-2], rounding_of(reward)):
        return "", trace
    at = int(apart.argmax()) + 1
    if 2 * at < len(reward):
        return f"From step {step[at]} on, where the reward jumps: ", trace.between(
            step[at], step[-1]
        )
    return f"Before step {step[at]}, where the reward jumps: ", trace.until(step[at - 1])


def _smoothed(trace: Trace) -> str:
    """Whether the logged reward is a moving average, in words."""
    if "reward" not in trace.steps or len(trace.rollouts):
        return ""  # recorded rollouts are as raw as can be
    reward = trace.steps["reward"]
    reward = reward[np.isfinite(reward)]
    if len(reward) < STEPS:
        return ""
    time = np.arange(len(reward))
    rest = reward - np.polyval(np.polyfit(time, reward, 3), time)
    if rest.std() < EQUAL:
        return ""
    close = correlation_estimate(float(np.corrcoef(rest[:-1], rest[1:])[0, 1]), len(rest) - 1)
    bends = rows_in_one(reward) == 1 or alike_at_most(reward, errors=1.0) <= SMOOTHED
    if close.low <= SMOOTHED or bends:  # a raw curve may, however sharply
        return ""
    return f"The logged reward is a smoothed curve (neighbouring steps: {close.value:.2f})."
