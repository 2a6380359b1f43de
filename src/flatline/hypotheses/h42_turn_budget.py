"""Episodes run out of turns: the problems need more calls than the policy is given.

## What goes wrong
A problem of four hops needs four searches and an answer. With a limit of four turns the right plan
cannot be finished, and the unfinished episode earns little. The policy learns to guess early.

## Sign
The share of episodes that end at the turn limit. Suspected where it is certainly above 0.05 in the
first steps and these episodes earn less than the mean. How it grows with the hops is
reported if they are known.

## Probe
The turns of the gold script of each problem (one per call, and one to answer) against the limit. A
fault where gold itself does not fit on more than one problem in twenty.

## Experiment
`max_turns` against twice as many, or a planted fault against none; matched seeds, outcome is the
held-out reward.

## Fix
Raise `--max-turns` (hops + 1 at the least, twice that for a policy that errs), and tell the policy
how many it has.

## Not to be confused with
H04 context-truncation: the tokens run out, not the turns. H08 evaluation-mismatch: training has
another limit than evaluation; then both fire, and H08 says which is the odd one.

## References
Search-R1 revisited (budget transparency).
Thresholds: in 24 healthy lab runs with tools up to 1.2 % of the first episodes end at the limit; 0
of 26 alarm (interval 0 to 13 %).
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Setting
from flatline.hypotheses.drift import began_with
from flatline.hypotheses.groups import mean_of, one_turn_only
from flatline.hypotheses.lengths import tells_limits
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

OUT_OF_TURNS = 0.05
"""Share of episodes that end at the limit, or of problems that cannot be finished. Healthy: up
to 0.012, and 0."""
BEGINNING = 32
"""Groups that show how a run begins; a broken policy calls its tools for ever."""
FEWEST = 8
"""Groups or problems that must have been looked at."""
PROBLEMS = 64
"""Problems whose gold script is counted."""
LIMITED = "turns"
"""What episodes that ran out of turns are said to end with."""


class TurnBudget(Hypothesis):
    id = "H42"
    name = "turn-budget"
    headline = "Your episodes run out of turns before they can answer."
    meaning = "The right plan cannot be finished, so it is never rewarded."
    fix = "Raise {max_turns} until episodes end with an answer."
    mechanism = "Episodes end at the turn limit; in the other arm they end with an answer."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do episodes run out of turns, and pay for it?"""
        if one_turn_only(trace):
            return self.not_applicable("every completion is one turn.", excluded_by="tools")
        finish, reward = trace.rollouts["finish"], trace.rollouts["reward"]
        if not tells_limits(trace):
            return self._untold(trace)
        out = np.array([one == LIMITED for one in finish], dtype=bool)
        shares = began_with(trace, out, BEGINNING)
        share = mean_of(shares)
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more groups are needed")
        text = f"{share.value:.1%} of the episodes of the first steps end at the turn limit."
        costs = out.any() and np.nanmean(reward[out]) < np.nanmean(reward)
        suspect = share.low > OUT_OF_TURNS and costs
        return self.found(
            Level.SUSPECT if suspect else Level.OK,
            f"{text} {_by_hops(trace, out)}".strip(),
            measured=share,
            expected=f"below {OUT_OF_TURNS:.0%}",
            # Other limits in training than in evaluation are the cause of this one (H08).
            severity=1.0,
            evidence=_examples(trace, np.flatnonzero(out)),
        )

    def _untold(self, trace: Trace) -> Finding:
        """Where nothing says that turns ran out, episodes of one turn alone have none to run out
        of."""
        turns = trace.rollouts["turns"]
        known = int(np.isfinite(turns).sum())
        if known < len(turns) or (turns > 1).any():
            return self.too_little("the sampler does not say when an episode runs out of turns")
        return self.not_applicable("every completion is one turn.", looked_at=known)

    def probe(self, subject: "Subject") -> Finding:
        """Does gold fit into the turns that there are?"""
        gold = subject.gold_turns(PROBLEMS)
        needed, limit = gold.needed, gold.limit
        if not len(needed):
            return self.too_little("there are no training problems")
        short = needed > limit
        text = (
            f"Gold needs {needed.min()} to {needed.max()} turns, and an episode has {limit}: "
            f"{short.sum()} of {len(needed)} problems cannot be finished."
        )
        return self.found(
            Level.FAULT if short.mean() > OUT_OF_TURNS else Level.OK,
            text,
            measured=float(short.mean()),
            expected="0",
            looked_at=len(needed),
            severity=float(short.mean()) / OUT_OF_TURNS,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """The turn limit against twice as many."""
        if config.task == "gsm8k":
            return None
        turns = config.max_turns
        return Setting(
            "max_turns",
            2 * turns,
            control=f"{turns} turns",
            treated=f"{2 * turns} turns",
        )


def _by_hops(trace: Trace, out: np.ndarray) -> str:
    if "hops" not in trace.rollouts or not out.any():
        return ""
    hops = trace.rollouts["hops"]
    levels = np.unique(hops[np.isfinite(hops)])
    told = [f"{out[hops == n].mean():.0%} at {n:.0f}" for n in levels]
    return f"By hops, over the run: {', '.join(told)}." if len(told) > 1 else ""


def _examples(trace: Trace, rows: np.ndarray) -> list[Evidence]:
    return [Evidence.of(trace, row, "ends while it still calls its tool") for row in rows[:3]]
