"""The reward does not follow the answer: noise or another part of it decides which rollout is best.

## What goes wrong
What is optimised is the difference between rollouts of one prompt. If that difference comes from a
moody judge, or from a part that is easy to earn and has nothing to do with being right (brevity,
citations, format), the policy learns that part, or nothing.

## Sign
The correlation, inside groups, of the total reward with the part that says "right" (`exact_match`,
`accuracy`, `correct...`). Suspected where it is certainly below 0.4, or below 0.6 while another
part is certainly followed more; the part that the reward follows instead is named. In groups with
right and wrong answers: suspected where certainly a quarter or more of the pairs rank the wrong one
higher; the part that outweighs the answer is named with its size. Also suspected:
the same completion of the same prompt is paid differently on three prompts or more, and this is
more than half of the variance inside groups; and a reward that is not a number. Parts that fight
each other inside groups are noted. If the weights of the parts are known, the text says by how much
each moves the reward inside groups, and which never does.

## Probe
Gold episodes through the trainer's own reward. Each must earn the same; a wide scatter is noise, or
a part that pays for something else.

## Experiment
First a replay of the stored rollouts: the advantages of each part of the reward alone. Where those
of the right-or-wrong part nearly agree with the ones that were trained on, the other parts are not
the cause. Then the whole sum against the right-or-wrong part (`reward` `combined` against
`exact_match`), or a planted fault against none, matched seeds; outcome is the held-out reward.

## Fix
One objective; multiply by parts that must hold (a gate) instead of adding them. Average a noisy
judge over several calls, or use larger groups.

## Not to be confused with
H39 reward-parser: the right-or-wrong part itself is wrong. H33 group-integrity: the reward is sound
and belongs to another rollout. H32 and H01: the reward hardly differs inside groups at all.

## References
GDPO (normalise each part, then sum; TRL's paper index). The seeds rated this "low, less likely
given the baseline"; a good baseline says nothing about what differs inside a group.
"""

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.arms import answer_alone
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Replay, Setting
from flatline.hypotheses.groups import (
    EQUAL,
    mean_of,
    unless_batch_alarms,
    within_correlation,
)
from flatline.hypotheses.logs import not_numbers
from flatline.hypotheses.repeats import repeats, said_twice
from flatline.hypotheses.replay import advantages, agreement, decide, trained
from flatline.hypotheses.right import needed_part, single_parts, two_valued
from flatline.stats import Estimate
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

FOLLOWS = 0.4
"""Correlation of reward and right answers inside groups. Healthy: 0.96 and more (three tasks of the
lab). False alarms: see docs/hypotheses.md."""
RULED = 0.6
"""The same where another part is certainly followed more. Healthy: 0.78 and more (a 1.5B model on
MuSiQue, whose reward follows `f1` as well)."""
FIGHTS = -0.2
"""Correlation of two parts that is noted; recall and precision may have it in a healthy run."""
SAME_PAY = 0.05
"""Difference of two rewards for one completion, as a share of all rewards' span. Healthy: 0."""
FEWEST = 3
"""Prompts that must show it."""
NOISY = 0.5
"""Share of the variance inside groups that differs between looks at one completion; as in H68."""
SCATTER = 0.1
"""Standard deviation of what gold earns. Healthy: 0; a factor for hops gives three values only."""
OUTRANKED = 0.25
"""Share of pairs of a right and a wrong answer of one group in which the wrong one earns more.
Healthy: 0 where the other parts together weigh less than being right; chance alone gives half."""
SUM = "sum_then_normalize"
"""TRL's name for advantages of the weighted sum of the parts."""
LEVELS = 4
"""Distinct gold rewards that a factor for difficulty explains."""


class RewardSignal(Hypothesis):
    id = "H05"
    name = "reward-signal"
    headline = "Your reward does not follow whether the answer is right."
    explains = ("H03", "H08")
    meaning = "The policy is pulled towards what the reward follows, which is not the right answer."
    fix = "Train on the right-or-wrong part alone, or multiply it by the others."
    mechanism = (
        "Inside groups the reward follows noise or another part than the right answer; in the "
        "other arm it follows the answer."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Does the reward follow the answer inside groups?"""
        return (
            self._unpaid(trace)
            or self._moody(trace)
            or self._outweighed(trace)
            or self._follows(trace)
        )

    def probe(self, subject: "Subject") -> Finding:
        """Does gold always earn the same?"""
        gold = subject.oracle().gold_R
        gold = gold[np.isfinite(gold)]
        if len(gold) < 2:
            return self.too_little("fewer than two problems could be run and scored")
        scatter, levels = float(gold.std()), len(np.unique(np.round(gold, 3)))
        text = f"Gold earns {gold.min():.2f} to {gold.max():.2f} on {len(gold)} problems."
        if scatter > SCATTER and levels > LEVELS:
            return self.found(
                Level.SUSPECT,
                f"{text} Its reward should not scatter.",
                measured=scatter,
                expected="0",
                severity=scatter / SCATTER,
            )
        steady = self.found(Level.OK, text, measured=scatter, expected="0", looked_at=len(gold))
        return unless_batch_alarms(steady, self.sign, subject.trace)

    def replay(self, trace: Trace) -> Replay:
        """The advantages of each part alone; that of the answer decides."""
        name = needed_part(trace)
        done, group = trained(trace), trace.groups().index
        alone = {
            part: agreement(done, advantages(trace, values), group)
            for part, values in single_parts(trace).items()
        }
        others = [
            f"`{part}` {one.value:.2f}" for part, one in alone.items() if part != name and one.n
        ]
        told = f"Other parts alone: {', '.join(others)}." if others else ""
        return decide(alone[name], f"Trained on `{name}` alone", told=told)

    def suspected(self, config: RunConfig) -> Setting | None:
        """The whole reward against its right-or-wrong part."""
        return answer_alone(config)

    def _unpaid(self, trace: Trace) -> Finding | None:
        """Is every reward a number? One that is not spoils its whole group."""
        table = trace.rollouts if len(trace.rollouts) else trace.steps
        lost = not_numbers(table, "reward") if "reward" in table else np.zeros(0, dtype=bool)
        if not lost.any():
            return None
        return self.found(
            Level.SUSPECT,
            f"The reward of {lost.sum()} of {len(lost)} {table.name} is not a number, from step "
            f"{int(table['step'][lost].min())} on.",
            measured=float(lost.mean()),
            expected="0",
            evidence=[
                Evidence.of(trace, row, "its reward is not a number")
                for row in np.flatnonzero(lost)[:3]
                if table is trace.rollouts
            ],
            fix="Give a failed rollout a number, usually 0, and find out why its reward failed.",
            headline="Some of your rewards are not numbers.",
        )

    def _moody(self, trace: Trace) -> Finding | None:
        """Is one completion paid differently at its second look?"""
        if "completion" not in trace.rollouts:
            return None
        reward = trace.rollouts["reward"]
        span = np.ptp(reward[np.isfinite(reward)]) if np.isfinite(reward).any() else 0.0
        pairs = repeats(trace, np.isfinite(reward))
        apart = [(a, b) for a, b in pairs if abs(reward[a] - reward[b]) > SAME_PAY * span > 0]
        groups = {int(trace.groups().index[a]) for a, _ in apart}
        if len(groups) < FEWEST or len(apart) < 0.5 * len(pairs):
            return None
        noise = _noise(reward, pairs, trace.groups().index)
        if noise <= NOISY:
            return None
        return self.found(
            Level.SUSPECT,
            f"{len(apart)} of {len(pairs)} repeated completions of a prompt are paid differently: "
            f"{noise:.0%} of what differs inside groups is not decided by the completion.",
            measured=noise,
            expected=f"below {NOISY:.0%}",
            evidence=[said_twice(trace, a, b) for a, b in apart[:3]],
            severity=2.0,
            headline="Your reward pays the same completion differently each time.",
        )

    def _outweighed(self, trace: Trace) -> Finding | None:
        """Does another part rank wrong answers above right ones?"""
        name, reward = needed_part(trace), trace.rollouts["reward"]
        sizes = _reach(trace)
        most = max(sizes, key=lambda part: sizes[part], default=name)
        if not sizes.get(name) or most == name or not two_valued(trace.parts()[name]):
            return None
        lost = _wrong_ahead(reward, trace.parts()[name], trace.groups().index)
        share = mean_of(lost)
        if share.n < FEWEST or not share.low > OUTRANKED:
            return None
        return self.found(
            Level.SUSPECT,
            f"Inside a group `{most}` moves the reward by up to {sizes[most]:.3g}, `{name}` by up "
            f"to {sizes[name]:.3g}: in {int((lost > 0).sum())} of {len(lost)} groups a wrong "
            f"answer earns more than a right one ({share.value:.0%} of such pairs).",
            measured=share,
            expected=f"below {OUTRANKED:.0%} of the pairs",
            severity=share.value / OUTRANKED,
            headline="Another part of your reward outweighs the right answer.",
            fix=f"Give `{most}` so small a weight that it moves the reward by less than `{name}`, "
            "or pay it to right answers alone.",
        )

    def _follows(self, trace: Trace) -> Finding:
        name, reward = needed_part(trace), trace.rollouts["reward"]
        parts = single_parts(trace)
        alone = [part for part in parts if part != name and _is(parts[part], reward)]
        if alone and not _is(parts[name], reward):
            return self.not_applicable(
                f"the run is trained on `{alone[0]}` alone.",
                looked_at=int(np.isfinite(reward).sum()),
            )
        group = trace.groups().index
        right = within_correlation(reward, parts[name], group)
        if not np.isfinite(right.value):
            return self.too_little(f"`{name}` and the reward never differ inside the same group")
        others = {part: within_correlation(reward, v, group) for part, v in parts.items()}
        best = max(others, key=lambda part: np.nan_to_num(others[part].value, nan=-2))
        text = f"Inside groups the reward follows `{name}` with a correlation of {right}."
        if best != name:
            text += f" It follows `{best}` more ({others[best].value:.2f})."
        text = f"{text} {_sizes(trace, group)}".strip()
        fights = _fights(parts, group)
        ruled = right.high < min(RULED, others[best].low)
        if right.high < FOLLOWS or ruled:
            level = Level.SUSPECT
        elif right.low < FOLLOWS:
            return self.too_little(f"{text} Twice as many groups are needed.")
        else:
            level = Level.NOTE if fights else Level.OK
        return self.found(
            level,
            f"{text} {fights}".strip(),
            measured=right,
            expected=f"above {FOLLOWS}",
            severity=1 + FOLLOWS - right.value,
        )


def _noise(reward: np.ndarray, pairs: list[tuple[int, int]], group: np.ndarray) -> float:
    """What one completion earns at two looks, as a share of the variance inside groups."""
    known = np.isfinite(reward)
    spread = [reward[known & (group == one)].var(ddof=1) for one in np.unique(group[known])]
    a, b = np.array(pairs).T
    return float((0.5 * (reward[a] - reward[b]) ** 2).mean() / max(np.nanmean(spread), EQUAL))


def _is(part: np.ndarray, reward: np.ndarray) -> bool:
    known = np.isfinite(part) & np.isfinite(reward)
    return bool(known.any()) and bool(np.all(np.abs(part - reward)[known] < EQUAL))


def _reach(trace: Trace) -> dict[str, float]:
    """By how much each part moves the reward inside a group at most; empty where weights are not
    known, or where the reward is not the weighted sum."""
    weights = trace.settings.get("reward_weights") or {}
    if trace.settings.get("multi_objective_aggregation") not in (None, SUM):
        return {}
    group, parts = trace.groups().index, single_parts(trace)
    return {
        name: abs(weights[name]) * _widest(values, group)
        for name, values in parts.items()
        if name in weights
    }


def _widest(part: np.ndarray, group: np.ndarray) -> float:
    known = np.isfinite(part)
    spans = [np.ptp(part[known & (group == each)]) for each in np.unique(group[known])]
    return float(max(spans, default=0.0))


def _wrong_ahead(reward: np.ndarray, part: np.ndarray, group: np.ndarray) -> np.ndarray:
    """For every group with right and wrong answers, the share of pairs in which the wrong one earns
    more. Right is whatever earns most of the part."""
    known = np.isfinite(reward) & np.isfinite(part)
    right = known & (part == np.max(part[known], initial=-np.inf))
    found = []
    for each in np.unique(group[known]):
        here = group == each
        good, bad = reward[here & right], reward[here & known & ~right]
        if len(good) and len(bad):
            found.append(float((bad[:, None] > good[None, :] + EQUAL).mean()))
    return np.array(found)


def _sizes(trace: Trace, group: np.ndarray) -> str:
    """How far each part moves the reward inside groups, in words; parts that never differ too."""
    weights = trace.settings.get("reward_weights")
    if not weights or len(weights) < 2:
        return ""
    sizes = {name: abs(w) * _within(trace.parts().get(name), group) for name, w in weights.items()}
    told = ", ".join(f"`{name}` {size:.2g}" for name, size in sizes.items() if size > EQUAL)
    still = [f"`{name}`" for name, size in sizes.items() if size <= EQUAL]
    moved = f"Inside groups parts move the reward by: {told}." if told else ""
    return f"{moved} {', '.join(still)} never differs there." if still else moved


def _within(part: np.ndarray | None, group: np.ndarray) -> float:
    """The usual distance of a part from the mean of its group."""
    if part is None or not np.isfinite(part).any():
        return 0.0
    known = np.isfinite(part)
    index = np.unique(group[known], return_inverse=True)[1]
    mean = np.bincount(index, part[known]) / np.maximum(np.bincount(index), 1)
    return float(np.sqrt(np.mean((part[known] - mean[index]) ** 2)))


def _fights(parts: dict[str, np.ndarray], group: np.ndarray) -> str:
    """The pair of parts that most certainly fight each other, in words."""
    pairs: dict[tuple[str, str], Estimate] = {
        (a, b): within_correlation(parts[a], parts[b], group) for a, b in combinations(parts, 2)
    }
    sure = [(pair.high, names) for names, pair in pairs.items() if pair.high < FIGHTS]
    if not sure:
        return ""
    a, b = min(sure)[1]
    return f"`{a}` and `{b}` fight each other ({pairs[a, b].value:.2f})."
