"""Groups whose rewards hardly differ get full-size advantages: noise weighs as much as signal.

## What goes wrong
Advantages are divided by the standard deviation of their group. That does not make them large: in a
group of 8 none can exceed 2.47, however small the deviation. It makes them *equal*: a group whose
rewards are .66 and .67 pulls as hard as one with 0 and 1. Where most groups differ only by crumbs
(a length bonus, a citation more, a judge's third decimal), the gradient follows the crumbs.

## Sign
Of the groups with any difference, the share whose deviation is below 2 % of the span of all
rewards; where the reward does not follow the right answer inside groups, 2 % of the largest reward:
a run may hold nothing but crumbs. Suspected where it certainly exceeds one half and the reward does
not rise. Only with `scale_rewards="group"`. A fault in any run: advantages that are not numbers.

## Probe
The sign on one batch, where the span is at least what gold earns: in one batch all may be crumbs.

## Experiment
First a replay of the stored rollouts: their advantages without the division by the group's spread.
Where these nearly agree with the ones that were trained on, the division is not the cause. Then
`scale_rewards` `group` against `none`, matched seeds, or a planted fault against none; outcome is
the held-out reward. Adam steps by the ratio of a gradient to its own size, so the arms go about
equally far. A large constant added to the spread (`std + 0.1`) lies between the two arms: what it
can change is what the undivided ones change, so it is not a separate arm.

## Fix
`scale_rewards="batch"` or `"none"`, or leave out groups with a deviation below a threshold.

## Not to be confused with
H32 zero-variance-groups: rewards are equal, so there is nothing to scale. H05 reward-signal: large
differences that have nothing to do with the answer.

## References
Dr. GRPO (2503.20783); Lite-PPO (2508.08221). The seeds' H01 expected "massive" advantages and named
`advantage_max` well above 1 as proof. It is no proof: 2.47 is the healthy maximum for groups of 8,
and their example (.62, .68, .71, .65) gives 1.2. They judged it invalid because GSM8K learnt on the
same trainer; rewards of 0 and 1 have no crumbs, so that run could not have shown it.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Replay, Setting
from flatline.hypotheses.groups import (
    RewardGroups,
    reward_groups,
    reward_rises,
    within_correlation,
)
from flatline.hypotheses.h05_reward_signal import FOLLOWS
from flatline.hypotheses.logs import not_numbers
from flatline.hypotheses.replay import advantages, agreement, decide, trained
from flatline.hypotheses.right import right_part
from flatline.stats import cluster_mean
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

CRUMBS = 0.02
"""Deviation inside a group, as a share of the span of all rewards, that is noise. Healthy lab runs
have up to 18 % of their groups below it, most of them late."""
MOSTLY = 0.5
"""Share of the differing groups. False alarms: see docs/hypotheses.md."""
FEWEST = 4
"""Groups that must differ at all."""


class AdvantageScaling(Hypothesis):
    id = "H01"
    name = "advantage-scaling"
    headline = "Your advantages are mostly noise: tiny reward differences count like large ones."
    explains = ("H05", "H08")
    meaning = "Most of the gradient follows differences that mean nothing."
    fix = "Set {scale_rewards} to `batch` or `none`, or drop groups with a tiny spread."
    mechanism = (
        "Most groups that differ at all differ by crumbs that are blown up to full size; without "
        "the division, or without the crumbs, they are not."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """How many groups differ by crumbs only?"""
        return self._no_number(trace) or self._judge(trace, _blind_level(trace))

    def probe(self, subject: "Subject") -> Finding:
        """The same of the batch, against what a right answer earns."""
        try:
            gold = float(np.max(np.abs(subject.oracle().gold_R), initial=0.0))
        except NotRecorded:
            gold = 0.0
        return self._judge(subject.trace, max(gold, _blind_level(subject.trace)))

    def _no_number(self, trace: Trace) -> Finding | None:
        table = trace.rollouts
        if "advantage" not in table or "reward" not in table:
            return None
        lost = not_numbers(table, "advantage")
        if not lost.any() or not_numbers(table, "reward").any():  # a reward that is none is H05's
            return None
        return self.found(
            Level.FAULT,
            f"The advantages of {lost.sum()} of {len(lost)} rollouts are NaN or infinite, from "
            f"step {int(trace.rollouts['step'][lost].min())} on; so is any gradient they enter.",
            measured=float(lost.mean()),
            expected="0",
            evidence=[
                Evidence.of(trace, row, "its advantage is not a number")
                for row in np.flatnonzero(lost)[:3]
            ],
            fix="Look for a division by a spread of 0, and for an overflow in 16 bits.",
            headline="Some of your advantages are not numbers.",
        )

    def replay(self, trace: Trace) -> Replay:
        """The advantages without the division."""
        plain = advantages(trace, trace.rollouts["reward"], scaling="none")
        found = agreement(trained(trace), plain, trace.groups().index)
        return decide(found, "Without the division by the group's spread")

    def suspected(self, config: RunConfig) -> Setting | None:
        """Advantages divided by the spread of their group, against undivided ones."""
        if config.scale_rewards != "group":
            return None
        return Setting(
            "scale_rewards",
            "none",
            control="advantages over the group's spread",
            treated="advantages as they are",
        )

    def _judge(self, trace: Trace, size: float) -> Finding:
        scaling = trace.settings.get("scale_rewards", "group")
        if scaling in ("none", "batch", False):
            return self.not_applicable(
                f"advantages are not divided by a group's std ({scaling}).",
                excluded_by="scale_rewards",
            )
        groups = reward_groups(trace)
        differ = ~groups.equal
        span = max(groups.span, size)
        if differ.sum() < FEWEST or span == 0:
            return self.too_little(
                f"{differ.sum()} groups have rewards that differ; {FEWEST} or more are needed"
            )
        crumbs = groups.std < CRUMBS * span
        share = cluster_mean(crumbs[differ], groups.prompt[differ])
        text = (
            f"{share.value:.0%} of {differ.sum()} differing groups differ by less than "
            f"{CRUMBS:.0%} of the reward's span {span:.2g} (median deviation "
            f"{np.median(groups.std[differ]):.2g}). {_largest(groups)}"
        )
        level = Level.NOTE if share.value > MOSTLY else Level.OK
        if share.low > MOSTLY and not reward_rises(trace):
            level = Level.SUSPECT
        return self.found(
            level,
            text,
            measured=share,
            expected=f"below {MOSTLY:.0%}",
            severity=share.value / MOSTLY,
            evidence=_examples(groups, differ & crumbs) if level is Level.SUSPECT else [],
        )


def _blind_level(trace: Trace) -> float:
    """The largest reward, where the reward does not follow the right answer; else 0.

    Rewards that lie together far from 0 may be sound, with an offset: only those that say nothing
    of the answer are measured against their own size.
    """
    name = right_part(trace)
    if name is None:
        return 0.0
    reward = trace.rollouts["reward"]
    follows = within_correlation(reward, trace.parts()[name], trace.groups().index)
    return float(np.nanmax(np.abs(reward))) if follows.high < FOLLOWS else 0.0


def _largest(groups: RewardGroups) -> str:
    """What the seeds looked at, beside what is possible."""
    size = int(groups.rewards.sizes.max())
    bound = (size - 1) / math.sqrt(size)
    farthest = groups.rewards.each(
        lambda rows: np.abs(rows - rows.mean(axis=-1, keepdims=True)).max(axis=-1)
    )
    seen = farthest / (groups.std + 1e-4)
    return f"The largest advantage is {seen.max():.2f}; groups of {size} allow {bound:.2f}."


def _examples(groups: RewardGroups, which: np.ndarray) -> list[Evidence]:
    return [
        Evidence(
            text=f"prompt {groups.prompt[at]}: rewards "
            f"{', '.join(f'{reward:.4g}' for reward in groups.rewards[at][:8])}",
            step=int(groups.step[at]),
            rollout=int(groups.rollout[at]),
        )
        for at in np.flatnonzero(which)[:3]
    ]
