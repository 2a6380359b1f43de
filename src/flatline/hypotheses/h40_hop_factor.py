"""The reward is multiplied by difficulty, so hard problems count more and the curve shows the mix.

## What goes wrong
A factor such as half the hops pays 2 for a right answer to a problem of four hops and 1 for two.
Under a division by the spread of the group it cancels in the update and only bends the curve. With
`scale_rewards` `none` or `batch` the hardest problems, which are mostly failed, own the update.

## Sign
What a right answer earns at each number of hops: the highest reward of right rollouts, by level.
There is a factor where levels with enough right answers differ by a fifth or more. What is right to
a degree, such as a share of tests, says nothing here. Suspected where
the factor reaches the update (`scale_rewards` is not `group`), noted where it bends the curve only.

## Probe
What gold earns at each number of hops, through the trainer's own reward.

## Experiment
A planted fault against none; matched seeds, outcome is the held-out reward without any factor.

## Fix
Take the factor out; log accuracy per hop count. To count hard problems more, draw them more often.

## Not to be confused with
H44 data-order: problems come in an order; with a factor both bend the curve. H05 reward-signal:
other parts than the answer decide inside a group, where a factor of the problem is a constant.

## References
The seeds' reward is multiplied by `n_hops / 2`; their curve of a frozen policy rises with the order
of the data.
Threshold: in 26 healthy lab runs right answers earn the same at every level within 1 %; 0 of 26
alarm (interval 0 to 13 %).
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.groups import EQUAL
from flatline.hypotheses.right import needed_part
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

APART = 1.2
"""Ratio of what a right answer earns at the best and the worst paid level. Healthy: 1.01."""
FEWEST = 8
"""Right rollouts that a level needs before its highest reward says anything."""
CANCELS = ("group", None, True)
"""Scalings that divide by the spread of the group; TRL's default where it is not told."""


class HopFactor(Hypothesis):
    id = "H40"
    name = "hop-factor"
    headline = "Your reward is multiplied by difficulty, so its curve shows the mix of problems."
    explains = ("H08",)
    meaning = "Hard problems own the update, and the reward curve shows which were drawn."
    fix = "Take the factor out of the reward; log accuracy per hop count instead."
    mechanism = "Right answers earn more the more hops they need; in the other arm all earn one."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do right answers earn more at more hops?"""
        name = needed_part(trace)
        part, hops = trace.parts()[name], trace.rollouts["hops"]
        right = part > 0
        if _by_degrees(part[right], hops[right]):
            return self.too_little(f"`{name}` says how right, and not whether")
        return self._judge(
            hops[right],
            trace.rollouts["reward"][right],
            trace.settings.get("scale_rewards"),
            least=FEWEST,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Does gold earn more at more hops?"""
        paid = subject.oracle()
        return self._judge(paid.hops_R, paid.gold_R, subject.settings.get("scale_rewards"), least=1)

    def _judge(
        self, hops: np.ndarray, reward: np.ndarray, scaling: object, *, least: int
    ) -> Finding:
        best = _best_by_level(hops, reward, least)
        if len(best) < 2:
            return self.too_little(
                f"fewer than two levels of difficulty have {least} right answers"
            )
        paid = list(best.values())
        told = ", ".join(f"{top:.3g} at {n}" for n, top in best.items())
        text = f"The best right answer earns {told} hops."
        if min(paid) <= 0:
            return self.too_little(f"{text} What earns nothing shows no factor.")
        ratio = max(paid) / min(paid)
        # Paid more for more hops, not by chance somewhere in between.
        factor = ratio > APART and bool(np.all(np.diff(paid) > 0) or np.all(np.diff(paid) < 0))
        if factor and scaling in CANCELS:
            text += " A division by the group's spread cancels that, but the curve shows it."
            return self.found(Level.NOTE, text, measured=ratio, expected="1")
        return self.found(
            Level.SUSPECT if factor else Level.OK,
            text,
            measured=ratio,
            expected=f"below {APART}",
            looked_at=len(reward),
            severity=ratio / APART,
        )


def _by_degrees(part: np.ndarray, hops: np.ndarray) -> bool:
    """Whether right answers of one level have several values: a factor gives each level one."""
    return any(np.ptp(part[hops == n]) > EQUAL for n in np.unique(hops[np.isfinite(hops)]))


def _best_by_level(hops: np.ndarray, reward: np.ndarray, least: int) -> dict[int, float]:
    known = np.isfinite(hops) & np.isfinite(reward)
    hops, reward = hops[known], reward[known]
    levels = [n for n in np.unique(hops) if (hops == n).sum() >= least]
    return {int(n): float(reward[hops == n].max()) for n in levels}
