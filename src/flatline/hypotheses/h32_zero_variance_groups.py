"""All rollouts of a prompt earn the same: their advantages are 0, and they move no weight.

## What goes wrong
GRPO learns from differences inside a group. A prompt that every rollout solves, or none, costs its
sampling time and gives no gradient. With a solve rate p and groups of G the share of such groups is
p^G + (1-p)^G: 43 % at p = 0.9 and G = 8, 66 % at p = 0.05.

## Sign
The share of groups whose rewards are all equal, recomputed from the raw rewards (TRL's `reward_std`
is over the batch and cannot show it). Suspected if it certainly exceeds 0.7, from the start on, and
the reward does not rise. A run that has learnt its prompts ends there too, which is noted, as is a
share above one half.

Two cases are named: if a logged reward ends at 0.9 of 1 or more, equal groups are those that every
rollout solves, and the prompts are used up. If none of 16 or more groups differs, though their
completions do, and prompts earn four different rewards or more, the prompt alone decides the
reward. A log that has only the spread over the batch is read where that is 0, since then no group
differs; one that counts the groups that are all right and all wrong, where these are more than
half; elsewhere it cannot be tested.

## Probe
Scripted wrong answers through the trainer's own reward: if most of them earn what gold earns, and
groups of the sampled batch are dead too, no group can differ. Otherwise the sign is read from the
batch.

## Experiment
First a replay of the stored groups: how closely the step agrees with one in which the dead
groups count as much as the live ones. If the two nearly agree, dead groups are not the cause. Then
`num_generations` against twice as many, from the same number of rollouts a step, so from half the
prompts, or a planted fault against none; matched seeds, outcome is the held-out reward. A batch
that does not hold whole groups of twice the size has no such arm.

## Fix
Prompts that the starting policy solves between 10 % and 90 % of the time; dynamic sampling; larger
groups; a reward that asks for more than the policy already does.

## Not to be confused with
H39 reward-parser: all are 0 because right answers are not read. H04 context-truncation: all are 0
because nothing is finished. H26 optimizer-not-stepping: advantages differ and gradients are 0.
H01 advantage-scaling: rewards differ, by crumbs.

## References
DAPO (Yu et al., 2025, dynamic sampling); RAGEN (2504.20073, variance filter); CoursIA issue 10603
(measured 77 %).
"""

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Replay, Setting
from flatline.hypotheses.column_movement import column, metric
from flatline.hypotheses.groups import RewardGroups, mean_of, reward_groups, reward_rises
from flatline.hypotheses.replay import decide
from flatline.hypotheses.trend import thirds
from flatline.stats import Estimate, cluster_mean
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

if TYPE_CHECKING:
    from flatline.live.subject import Subject

DEAD = 0.7
"""Share of dead groups that is suspected. Healthy: 0 to 0.41 in the lab; by the formula 0.43 for
rewards of 0 and 1 at a solve rate of 0.9 and groups of 8. False alarms: see docs/hypotheses.md."""
WEAK = 0.5
"""Share that is noted: half of the sampling is lost."""
BEGINNING = 16
"""Groups that show how the run began; it is dead from the start or was worn out later."""
ALIKE, ALIKE_REWARDS = 8, 32
"""Groups, and rewards, of which not one differs. A policy that solves one problem in ten leaves 32
tries without a success in 3 % of such batches, and with them nothing to learn from."""
ONE_VALUE = 1e-6
GRADED, GRADED_GROUPS = 4, 16
"""Different rewards between prompts that no prompt has two of, and groups that must show it."""
MOSTLY = 0.5
"""Share of the groups whose completions must differ: a policy that says one thing earns one."""
NOT_NONE = "Return 0 for a wrong answer: None leaves the rollout out of its group."
BY_HAND = (
    "Take one completion by hand: print it, its gold answer and what each reward function pays for "
    "it. If the pay is right, take problems that are solved 10 % to 90 % of the time."
)
SOLVED, SPREAD = 0.9, 0.35
"""Logged reward of prompts that nearly every rollout solves, and how far rewards of 0 and 1 may
then be apart: 0.3. More is a reward whose best is not 1."""
USED_UP = "Your prompts are used up: nearly every rollout solves them, so most teach nothing more."
HARDER = "Take harder prompts, or stop here and evaluate: what is left to learn is not in these."
SATURATED = 0.5
"""Share of wrong answers that earn what gold earns above which the reward cannot tell."""


class ZeroVarianceGroups(Hypothesis):
    id = "H32"
    name = "zero-variance-groups"
    headline = "Most of your groups teach nothing: all rewards in them are equal."
    explains = ("H24", "H05", "H08")
    meaning = "Dead groups give no gradient: the effective batch is what is left of them."
    fix = "Choose prompts that are solved 10 % to 90 % of the time, or a reward that asks for more."
    mechanism = (
        "Most groups have a single reward value from the start on; in the other arm most differ."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """How many groups are dead?"""
        if not len(trace.rollouts):
            return self._from_steps(trace)
        groups = reward_groups(trace)
        if groups.n == 0:
            return self.too_little("no group has two rewards; one step of whole groups is needed")
        if _one_reward(groups):
            return self._all_alike(trace, groups)
        if (levels := _by_prompt_alone(trace, groups)) is not None:
            return self._blind(groups, levels)
        share = cluster_mean(groups.equal, groups.prompt)
        return self._judge(
            share,
            early=float(groups.equal[:BEGINNING].mean()),
            rises=reward_rises(trace),
            told=_split(groups),
            evidence=_examples(groups),
        )

    def probe(self, subject: "Subject") -> Finding:
        """Does the reward tell wrong answers from gold?"""
        oracle = subject.oracle()
        ties = [c for c in oracle.not_below_gold if abs(c.reward - c.gold_reward) < 1e-6]
        seen = self.sign(subject.trace)
        dead = seen.level is not Level.OK  # groups that do differ, if by crumbs, are H01's
        if dead and oracle.played and len(ties) > SATURATED * oracle.played:
            return self.found(
                Level.FAULT,
                f"{len(ties)} of {oracle.played} wrong answers earn exactly what the gold "
                "answer earns, so groups cannot differ.",
                measured=len(ties) / oracle.played,
                expected="0",
                evidence=[
                    Evidence(text=f"problem {c.problem}, {c.script}: pays {c.reward:.3g} like gold")
                    for c in ties[:3]
                ],
            )
        return seen

    def replay(self, trace: Trace) -> Replay:
        """What is left of a step: a cosine of the root of the live groups' share.

        Had the dead groups their own direction, as long as that of the live ones, the step
        would have had the live part and theirs; with the live part alone it has that cosine.
        """
        groups = reward_groups(trace)
        live = cluster_mean(~groups.equal, groups.prompt)
        value, low, high = (math.sqrt(max(end, 0.0)) for end in live[:3])
        return decide(
            Estimate(value, low, high, live.n),
            "Had the dead groups counted as much as the live ones",
            told=f"{live.value:.0%} of {groups.n} groups differ.",
            unit="prompts",
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """Groups as they are against groups of twice the size."""
        size = config.num_generations
        completions = config.batch_size * config.gradient_accumulation_steps
        if completions % (2 * size):
            return None
        return Setting(
            "num_generations",
            2 * size,
            control=f"groups of {size}",
            treated=f"groups of {2 * size}",
        )

    def _all_alike(self, trace: Trace, groups: RewardGroups) -> Finding:
        """Every reward is one number, so no interval is needed to see that nothing differs."""
        paid, rollouts = groups.rewards.values, len(trace.rollouts)
        unpaid = int(np.isnan(trace.rollouts["reward"]).sum())
        none = f" The other {unpaid} of {rollouts} rollouts have none: no function judged them."
        return self.found(
            Level.SUSPECT,
            f"All {len(paid)} rewards, of {groups.n} groups, are {float(paid[0]):.3g}."
            + (none if unpaid else ""),
            measured=1.0,
            expected=f"below {DEAD:.0%} of the groups",
            severity=1 / DEAD,
            evidence=_examples(groups),
            fix=NOT_NONE if unpaid else BY_HAND,
            points_at_cause=True,
        )

    def _blind(self, groups: RewardGroups, levels: int) -> Finding:
        """Graded between prompts and never inside one: it does not look at what was written."""
        return self.found(
            Level.SUSPECT,
            f"All rewards are equal in each of {groups.n} groups, though completions differ, and "
            f"prompts have {levels} different rewards: the prompt alone decides the reward.",
            measured=1.0,
            expected=f"below {DEAD:.0%} of the groups",
            severity=1 / DEAD,
            evidence=_examples(groups),
            fix="Print what the reward function is given: in a conversation a completion is a list "
            "of messages, and its text is `completion[0]['content']`.",
            headline="Your reward does not depend on what the model writes.",
            points_at_cause=True,
        )

    def _judge(
        self,
        share: Estimate,
        *,
        early: float,
        rises: bool,
        told: str,
        evidence: list[Evidence],
        solved: str = "",
    ) -> Finding:
        text = f"{share.value:.0%} of the groups have a single reward value{told}."
        if share.low > DEAD and early > WEAK and not rises:
            level = Level.SUSPECT
        elif share.value > WEAK:
            level = Level.NOTE
            text += " It began with less." if early <= WEAK else ""
        else:
            level = Level.OK
        text += solved if level is not Level.OK else ""
        if level is Level.OK and share.high > DEAD:
            return self.too_little(f"{text} Twice as many groups are needed.")
        return self.found(
            level,
            text,
            measured=share,
            expected=f"below {DEAD:.0%}",
            severity=share.value / DEAD,
            evidence=evidence if level is Level.SUSPECT else [],
            headline=USED_UP if solved else None,
            fix=HARDER if solved else None,
            points_at_cause=True,
        )

    def _from_steps(self, trace: Trace) -> Finding:
        if "zero_std_share" not in trace.steps:
            return self._from_solved(trace) or self._from_batch(trace)
        shares = trace.steps["zero_std_share"]
        if trace.settings.get("scale_rewards") == "batch":
            return self.too_little(
                "the logged share is about the batch, not its groups (scale_rewards is `batch`); "
                "recorded rollouts are needed"
            )
        known = shares[np.isfinite(shares)]
        if not len(known):
            return self.too_little("a logged share that is a number is needed")
        return self._judge(
            mean_of(known),
            early=float(known[:BEGINNING].mean()),
            rises=reward_rises(trace),
            told=f" (logged at {len(known)} steps)",
            evidence=[],
            solved=_solved(trace),
        )

    def _from_solved(self, trace: Trace) -> Finding | None:
        """Of a log that counts the groups that are all right and all wrong: groups of equal rewards
        in between are not among them, so that this can show too many, and never enough."""
        ends = [
            [name for name in trace.metric_names if re.split(r"[/.]", plain(name))[-1] == each]
            for each in ("solve_all", "solve_none")
        ]
        if [len(names) for names in ends] != [1, 1]:
            return None
        both = trace.metric(ends[0][0]) + trace.metric(ends[1][0])
        known = both[np.isfinite(both)]
        if not len(known) or not 0 <= known.min() <= known.max() <= 1 or known.mean() <= WEAK:
            return None
        return self._judge(
            mean_of(known),
            early=float(known[:BEGINNING].mean()),
            rises=reward_rises(trace),
            told=f" (`{ends[0][0]}` and `{ends[1][0]}` at {len(known)} steps)",
            evidence=[],
        )

    def _from_batch(self, trace: Trace) -> Finding:
        """Of a log that has the spread over the batch: where that is 0, every group is dead."""
        spread = trace.metric("reward_std")
        spread = spread[np.isfinite(spread)]
        dead = (spread == 0).astype(float)
        share = cluster_mean(dead, range(len(dead)))
        text = (
            f"All rewards of the batch are equal at {int(dead.sum())} of {len(dead)} logged steps"
        )
        if not share.value > WEAK:
            return self.too_little(
                f"{text}; at the others they differ, but only recorded rollouts show "
                "whether they differ inside groups"
            )
        worn = share.low > DEAD and float(dead[:BEGINNING].mean()) > WEAK
        return self.found(
            Level.SUSPECT if worn and not reward_rises(trace) else Level.NOTE,
            f"{text}: no group of these teaches anything.",
            measured=share,
            expected=f"below {DEAD:.0%}",
            severity=share.value / DEAD,
            points_at_cause=True,
        )


def _solved(trace: Trace) -> str:
    """What a logged reward next to 1 makes of equal groups, in words; empty where it is not."""
    paid = thirds(column(trace, "reward"), trace.steps["step"]) if len(trace.steps) else None
    if paid is None or not paid.late.mean() >= SOLVED or paid.late.max() > 1 + ONE_VALUE:
        return ""
    spread = metric(trace, "reward_std")
    if np.isfinite(spread).any() and np.nanmedian(spread[-len(paid.late) :]) > SPREAD:
        return ""
    at_the_end = f" The reward is {paid.late.mean():.2g} of 1 at the end"
    return f"{at_the_end}: these prompts are solved, and only harder ones would teach more."


def _one_reward(groups: RewardGroups) -> bool:
    """Whether all of enough rewards are the same."""
    values = groups.rewards.values
    return groups.n >= ALIKE and len(values) >= ALIKE_REWARDS and np.ptp(values) < ONE_VALUE


def _by_prompt_alone(trace: Trace, groups: RewardGroups) -> int | None:
    """How many rewards there are, where each of several prompts has one and its completions differ.
    Two may be problems that are always solved and others that never are."""
    if "completion" not in trace.rollouts or groups.n < GRADED_GROUPS or not groups.equal.all():
        return None
    levels = len(np.unique(np.round(groups.mean, 6)))
    said, index = trace.rollouts.coded("completion").codes, trace.groups().index
    pairs = np.unique(np.stack([index, said]), axis=1)[0]
    differ = np.bincount(pairs, minlength=int(index.max()) + 1) > 1
    return levels if levels >= GRADED and differ.mean() >= MOSTLY else None


def _split(groups: RewardGroups) -> str:
    """Whether the dead ones are at the bottom or at the top."""
    dead = groups.mean[groups.equal]
    if not len(dead):
        return ""
    values = groups.rewards.values
    low, high = values.min(), values.max()
    if high - low == 0:
        return f": all {len(values)} rewards are {low:.3g}"
    bottom, top = np.mean(dead <= low + 1e-6), np.mean(dead >= high - 1e-6)
    return f" ({bottom:.0%} of these at the lowest reward, {top:.0%} at the highest)"


def _examples(groups: RewardGroups) -> list[Evidence]:
    return [
        Evidence(
            text=f"prompt {groups.prompt[at]}: {len(groups.rewards[at])} rollouts, all "
            f"{groups.mean[at]:.3g}",
            step=int(groups.step[at]),
            rollout=int(groups.rollout[at]),
        )
        for at in np.flatnonzero(groups.equal)[:3]
    ]
