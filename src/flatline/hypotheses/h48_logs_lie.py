"""The logged curve is not what happened: logged numbers differ from the rollouts.

## What goes wrong
Metrics are averaged with NaN, over padding or over other ranks, smoothed before they are written,
scaled, or misnamed (`reward_std` is over the batch). People then fix what the log shows, while the
rollouts show something else.

## Sign
The trainer's logged reward against the mean of the recorded rollouts of the same step. Suspected if
they differ by more than 0.001 of the rewards' span at more than one step in ten, and at three steps
or more.

So is every other metric of TRL that can be computed again from the recording: the share of clipped
tokens, KL and entropy (from the passes), lengths, the share of cut completions, each function's
mean, the spread of rewards and the share of groups without one. Releases average them in different
ways; a metric is wrong if it lies outside all of these, beyond rounding.

Not tested: runs in which others than the model write into completions; KL, entropy and clipping of
several processes; spreads under other scales than the group's; logs that average over several
steps; trainers that sample rows which they do not train.

## Probe
None: a log needs a run.

## Experiment
A planted fault against none. The held-out reward must not differ, since only the log is wrong: that
is the finding.

## Fix
Trust the recorded rollouts. Log raw means of each step, with the number of values behind them.

## Not to be confused with
H08 evaluation-mismatch: both numbers are true, of different rollouts. H47 seed-noise: the numbers
are true and say little. H05 reward-signal: the reward itself does not follow the answer. H50 to
H59: a step that departs is logged as the trainer took it; the log is then a consequence.

## References
TRL's `reward_std` and `frac_reward_zero_std` (over the batch under batch scaling); the seeds' table
of transcripts, which emptied the tool calls before it wrote them.
TRL 0.16 counts unclipped tokens as clipped (pull request 3175).
Threshold: in 26 healthy lab runs both agree to 1.2e-7 of the span; 0 of 26 alarm (interval 0 to
13 %). Ranges of the other metrics are widened by 0.001 of themselves, or in 16 bits by 0.03.
"""

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.logged import Logged, logged_beside, one_generation
from flatline.trace import Trace

OFF = 1e-3
"""Difference, as a share of the rewards' span. Healthy: rounding, below 1e-6."""
SHARE = 0.1
"""Steps that must differ."""
FEWEST = 3
"""Steps that must differ at the least."""
EVERY = 0.9
"""Share of the steps with a log line of their own; below it, lines average over several."""
REWARD = "reward"
"""What TRL calls the mean reward of a step."""


class LogsLie(Hypothesis):
    id = "H48"
    name = "logs-lie"
    headline = "Your logged numbers are not what happened in the rollouts."
    meaning = "Conclusions from the log are about numbers that no rollout earned."
    fix = "Read the recorded rollouts (`flatline show RUN`); fix what writes the log."
    mechanism = "The logged reward is not that of the rollouts; in the other arm it is."

    def sign(self, trace: Trace) -> Finding:
        """Is what was logged what was earned?"""
        if not len(trace.rollouts):
            raise NotRecorded("rollouts.reward")
        if trace.rows_left_out:
            return self.too_little("the log may include rows that are sampled and not trained")
        reward = trace.rollouts["reward"]
        known = reward[np.isfinite(reward)]
        if len(known) < len(reward) and not one_generation(trace.settings):
            return self.too_little("rollouts without a reward count otherwise in each generation")
        span = (float(np.ptp(known)) if known.size else 0.0) or 1.0
        logged, earned, step = _both(trace, trace.rollouts["step"], reward)
        if len(step) < EVERY * len(np.unique(trace.rollouts["step"])):
            return self.too_little("a log line averages over several steps; log every step")
        off = np.abs(logged - earned) / span
        wrong = off > OFF
        text = f"The logged reward differs from the rollouts at {wrong.sum()} of {len(step)} steps"
        if wrong.sum() >= FEWEST and wrong.mean() > SHARE:
            return self.found(
                Level.SUSPECT,
                f"{text}, by {np.abs(logged - earned)[wrong].mean():.3f} on average.",
                measured=float(wrong.mean()),
                expected="0",
                severity=float(off[wrong].mean() / OFF),
                evidence=_examples(step[wrong], logged[wrong], earned[wrong]),
            )
        others = [one for one in logged_beside(trace) if len(one.step) >= EVERY * max(one.due, 1)]
        lying = [one for one in others if _lies(one)]
        if lying:
            return self._other(lying)
        agree = f", and {len(others)} other metrics agree with the recording" if others else ""
        return self.found(
            Level.OK,
            f"{text}{agree}.",
            measured=float(wrong.mean()) if len(wrong) else None,
            expected="0",
            looked_at=len(step),
        )

    def _other(self, lying: list[Logged]) -> Finding:
        """Metrics besides the reward that are not those of the recorded steps."""
        first = lying[0]
        wrong = first.off > 0
        also = "".join(f" `{one.name}` is wrong as well." for one in lying[1:3])
        return self.found(
            Level.SUSPECT,
            f"The logged `{first.name}` is not that of the recorded step at {wrong.sum()} of "
            f"{len(wrong)} steps: {first.logged[wrong].mean():.4g} on average instead of "
            f"{_range(first.least[wrong].mean(), first.most[wrong].mean())}.{also}",
            measured=float(wrong.mean()),
            expected="0",
            severity=1 + float(wrong.mean()),
            evidence=[
                Evidence(
                    text=f"`{first.name}` is logged as {first.logged[at]:.4g}, the recorded step "
                    f"has {_range(first.least[at], first.most[at])}",
                    step=int(first.step[at]),
                )
                for at in np.flatnonzero(wrong)[:3]
            ],
        )


def _both(
    trace: Trace, step: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What was logged, what the rollouts say, and the steps that have both."""
    known = np.isfinite(values)
    steps, index = np.unique(step[known], return_inverse=True)
    means = np.bincount(index, values[known]) / np.maximum(np.bincount(index), 1)
    told = dict(zip(trace.steps["step"].astype(int).tolist(), _logged(trace), strict=True))
    logged = np.array([told.get(int(one), np.nan) for one in steps])
    there = np.isfinite(logged)
    return logged[there], means[there], steps[there]


def _logged(trace: Trace) -> np.ndarray:
    """The trainer's own reward. A loop that records itself may give it as a column."""
    try:
        return trace.metric(REWARD)
    except NotRecorded:
        if trace.run.get("source") != "recorder":  # elsewhere the column is made of the rollouts
            raise
        return trace.steps["reward"]


def _examples(step: np.ndarray, logged: np.ndarray, earned: np.ndarray) -> list[Evidence]:
    return [
        Evidence(text=f"logged {told:.4f}, earned {was:.4f}", step=int(at))
        for at, told, was in list(zip(step, logged, earned, strict=True))[:3]
    ]


def _lies(one: Logged) -> bool:
    wrong = one.off > 0
    return bool(wrong.sum() >= FEWEST and wrong.mean() > SHARE)


def _range(least: float, most: float) -> str:
    return f"{least:.4g} to {most:.4g}"
