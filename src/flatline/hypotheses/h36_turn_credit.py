"""Good turns are not paid for: finding what the answer needs earns no more than not finding it.

## What goes wrong
One number is given to a whole episode of several turns. Where calls cost something, where only the
last word counts and it is mostly luck, or where the episode fails late, the turn that found the
right document is punished with the rest. The policy cannot learn to search, although searching is
what makes it right.

## Sign
The correlation, inside groups, of the reward with how much of what is needed was found (needed
documents seen, or a part of the reward called recall or progress). Suspected where three things are
certain: those who find more are right more often (above 0.2), the reward follows the right answer
(above 0.4), and it does not follow finding (below 0.25). How often an episode that found everything
is pushed down (advantage below 0) is reported with it.

## Probe
The same, on one batch, where the batch is large enough.

## Experiment
A planted fault against none; matched seeds, outcome is the held-out reward. Where the reward is one
part alone, that part against the whole sum, which pays turns too.

## Fix
Pay turns: add the recall of needed documents, or use advantages per turn (MT-GRPO, GiGPO). Take
costs of calls away until the policy uses its tool well.

## Not to be confused with
H05 reward-signal: the reward does not follow the answer either. H07 multi-step: later turns are not
trained at all. H43 behaviour-collapse: what the policy does about it, later.

## References
MT-GRPO (turn-level credit); GiGPO (2505.10978).
Thresholds: in 24 healthy lab runs with something to find the correlation is 0.66 and more; 0 of 26
alarm (interval 0 to 13 %).
"""

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import one_turn_only, within_correlation
from flatline.hypotheses.replay import trained
from flatline.hypotheses.right import needed_part, of_our_task
from flatline.tasks.base import COMBINED
from flatline.trace import Trace

NEEDED = 0.2
"""Correlation of finding and being right above which the answer needs what is found."""
FOLLOWS = 0.4
"""Correlation of reward and right above which the reward is about the answer: H05's threshold."""
PAID = 0.25
"""Correlation of reward and finding below which turns are not paid for. Healthy: 0.66 and more."""
FOUND_PARTS = ("retrieval_recall", "recall", "progress")
"""Parts of our own tasks that say how much was found, where the documents are not known."""


class TurnCredit(Hypothesis):
    id = "H36"
    name = "turn-credit"
    headline = "Your reward does not pay for the turns that lead to right answers."
    explains = ("H43",)
    meaning = "The turns that make an answer right are not rewarded, so they are not learnt."
    fix = "Pay for what the turns find, per turn if possible; take costs of calls away."
    mechanism = "Finding what is needed earns nothing; in the other arm it is paid for."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Is finding paid for?"""
        if one_turn_only(trace):
            return self.not_applicable("every completion is one turn.", excluded_by="tools")
        name = needed_part(trace)
        found, reward = _found(trace), trace.rollouts["reward"]
        group, right = trace.groups().index, trace.parts()[name]
        needed = within_correlation(right, found, group)
        about = within_correlation(reward, right, group)
        paid = within_correlation(reward, found, group)
        if not np.isfinite([needed.value, about.value, paid.value]).all():
            return self.too_little("what was found never differs inside a group that differs")
        text = (
            f"Inside groups the reward follows what was found with a correlation of {paid}, the "
            f"right answer with {needed.value:.2f}. {_pushed_down(trace, found)}"
        )
        if paid.high < PAID and needed.low > NEEDED and about.low > FOLLOWS:
            level = Level.SUSPECT
        elif about.high < FOLLOWS:
            return self.too_little(f"{text} The reward does not follow the right answer; see H05.")
        elif paid.low > PAID or needed.high < NEEDED:
            level = Level.OK
        else:
            return self.too_little(f"{text} Twice as many groups are needed.")
        return self.found(
            level, text, measured=paid, expected=f"above {PAID}", severity=1 + PAID - paid.value
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """One part of the reward against the whole, which pays turns too."""
        if config.reward == COMBINED:
            return None
        return Setting(
            "reward",
            COMBINED,
            control=f"`{config.reward}` alone",
            treated="the whole reward",
        )


def _found(trace: Trace) -> np.ndarray:
    """The share of what is needed that a rollout was shown."""
    rollouts, parts = trace.rollouts, trace.parts()
    if "supporting" in rollouts and "supporting_seen" in rollouts:
        needed = rollouts["supporting"]
        return np.where(needed > 0, rollouts["supporting_seen"] / np.maximum(needed, 1), np.nan)
    for name in FOUND_PARTS if of_our_task(trace) else ():
        if name in parts:
            return parts[name]
    raise NotRecorded("rollouts.supporting_seen")


def _pushed_down(trace: Trace, found: np.ndarray) -> str:
    """How often an episode that found everything has an advantage below 0, in words."""
    all_of_it = found >= 1
    if not all_of_it.any():
        return "No episode found everything."
    share = float(np.mean(trained(trace)[all_of_it] < 0))
    return f"Of the episodes that found everything {share:.0%} are pushed down."
