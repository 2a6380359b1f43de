"""The policy has become so certain that all rollouts of a prompt are the same.

## What goes wrong
Probability gathers on what was rewarded first. Rollouts of a prompt become identical, their
rewards equal, the advantages 0: there is nothing left to compare, and the reward stays where it is.

## Sign
The mean entropy of the last third of the steps against the first third. Suspected if it has
certainly fallen by more than 70 % or certainly is below 0.01 nat, while the reward does not rise
and the groups have died with it: certainly half of the late groups have equal rewards, and more
than at the start. A logged reward of 0 to 1 that rose early counts as not rising if a further rise
in its last third is excluded and it is below 0.9: at 0.9 solved prompts would explain it. A fall
alone is noted: healthy runs become sure of what they have learnt. Healthy: falls of 63 % at most
and all of them with a rising reward (0 of 26 runs, interval 0 to 13 %).

Also suspected in a log, whatever the entropy: pass@1 of an evaluation certainly rises while its
pass@k certainly falls.

## Probe
None: it develops during a run.

## Experiment
A run with the planted fault against the same without it; or the temperature in use against 1, where
it is lower; matched seeds.

## Fix
A wider clip above (`epsilon_high=0.28`), a temperature of 1, a small entropy bonus, harder prompts;
look at the entropy of decisions (tool names, first words of a query), not of copied text.

## Not to be confused with
H32 zero-variance-groups: groups are dead from the start. H24 learning-rate: a rate that is too high
breaks the policy in a few steps, and its entropy with it. H34 duplicate-samples: rollouts are equal
although the policy is not sure, because they share random numbers.

## References
DAPO; Cui et al. (arXiv 2505.22617): reward ≈ -a exp(entropy) + b. TRL `entropy_coef`.
"""

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.arms import at_temperature_one
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.column_movement import column, ends, metric
from flatline.hypotheses.groups import mean_of, reward_rises
from flatline.hypotheses.held_out import narrows
from flatline.hypotheses.trend import trend_of
from flatline.stats import Estimate
from flatline.trace import Trace

FALLEN = 0.3
"""Entropy that is left, as a share of the start. Healthy: 0.37 and more (two passes per batch)."""
SURE = 0.01
"""Nats of a policy that is sure of everything. Healthy: 0.033 and more."""
DEAD = 0.5
"""Share of late groups with equal rewards. Healthy runs reach 0.64, with a rising reward."""
SOLVED = 0.9
"""Reward of 1 at which equal groups are solved prompts."""
FEWEST = 9
"""Steps that can be cut into thirds."""


class EntropyCollapse(Hypothesis):
    id = "H30"
    name = "entropy-collapse"
    headline = "Your policy has stopped exploring: its samples are all the same."
    meaning = "There is nothing left to compare: every rollout of a prompt is the same."
    fix = "Start again from before the collapse with a wider clip above or an entropy bonus."
    mechanism = "The entropy falls and groups die with it; in the other arm they live."

    def sign(self, trace: Trace) -> Finding:
        """Has the entropy fallen, and have the groups died with it?"""
        if not len(trace.rollouts) and (found := self._narrows(trace)):
            return found
        step, entropy = trace.steps["step"], trace.steps["entropy"]
        known = np.isfinite(entropy) & (step > 0)
        if known.sum() < FEWEST:
            return self.too_little(f"{FEWEST - known.sum()} more steps with an entropy are needed")
        third = known.sum() // 3
        start = float(entropy[known][:third].mean())
        late = mean_of(entropy[known][-third:])
        collapsed = late.high < max(FALLEN * start, SURE)
        text = f"The entropy went from {start:.3g} to {late.value:.3g} nat per token"
        if not collapsed:
            return self.found(
                Level.OK,
                f"{text}.",
                measured=late,
                expected=f"above {max(FALLEN * start, SURE):.2g}",
            )
        dead = _dead(trace, known, third)
        stuck = dead is not None and dead[1].low > DEAD and dead[1].low > dead[0]
        if dead is not None:
            text += f", and groups of equal rewards from {dead[0]:.0%} to {dead[1].value:.0%}"
        stalled = _stalled(trace) if stuck else ""
        return self.found(
            Level.SUSPECT if stuck and (stalled or not reward_rises(trace)) else Level.NOTE,
            f"{text}{stalled}.",
            measured=late,
            expected=f"above {max(FALLEN * start, SURE):.2g}",
            severity=start / max(late.value, 1e-6) * FALLEN,
        )

    def _narrows(self, trace: Trace) -> Finding | None:
        """Are more problems solved at the first try, and fewer by one of several?"""
        tries = narrows(trace)
        if tries is None:
            return None
        one, several = (_went(trace, name) for name in tries)
        why = "".join(
            f" The {what} from {before:{form}} to {after:{form}}."
            for what, values, form in (
                ("entropy goes", column(trace, "entropy"), ".3g"),
                ("share of groups with equal rewards goes", column(trace, "zero_std_share"), ".0%"),
            )
            if np.isfinite(values).sum() >= FEWEST
            for before, after in [ends(values, trace.steps["step"])]
        )
        return self.found(
            Level.SUSPECT,
            f"{one}, and {several}: the first try gets better, and further ones add less.{why}",
            headline="Your policy gets narrower: several tries solve fewer problems.",
            expected="both rise",
            fix="Go back to the checkpoint before the score of several tries fell, with a wider "
            "clip above or an entropy bonus, if you sample several answers.",
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """A low temperature against 1."""
        return at_temperature_one(config)


def _went(trace: Trace, name: str) -> str:
    """How a score that is evaluated now and then goes, in words."""
    values = metric(trace, name)
    known = values[np.isfinite(values)]
    half = len(known) // 2
    before, after = known[:half].mean(), known[-half:].mean()
    word = "rises" if after > before else "falls"
    return f"`{name}` {word} from {before:.3g} to {after:.3g} between the halves of its evaluations"


def _stalled(trace: Trace) -> str:
    """That a reward of 0 to 1 stands far from 1, in words; empty where it rises, or is solved."""
    trend, paid = trend_of(trace), column(trace, "reward")
    paid = paid[np.isfinite(paid)]
    if trend is None or not len(paid) or not 0 <= paid.min() <= paid.max() <= 1:
        return ""
    late = float(paid[-(len(paid) // 3) :].mean())
    if not trend.lately.high < trend.smallest or late > SOLVED:
        return ""
    stands = f", while the reward stands at {late:.2g} of 1 in its last third"
    return f"{stands}: the prompts are not solved"


def _dead(trace: Trace, known: np.ndarray, third: int) -> tuple[float, Estimate] | None:
    """Share of groups with equal rewards, early and late; None where it was not recorded."""
    try:
        share = trace.steps["zero_std_share"][known]
    except NotRecorded:
        return None
    return float(np.nanmean(share[:third])), mean_of(share[-third:])
