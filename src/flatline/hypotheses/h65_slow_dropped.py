"""Slow rollouts are dropped, so what is trained is shorter and easier than what was asked.

## What goes wrong
An asynchronous trainer bounds how old a rollout may be, or how long it may take, and throws away
what comes too late. What comes late is long, and long is hard: the problems that would teach most
are asked again and again and never reach a batch. The policy that is trained is not the one that
was sampled: its long answers get no gradient, and it learns to be short. Nothing else shows: the
rewards of the rest are fine, and better than they should be.

## Sign
Rollouts that ended, or were given up (`finish` of `abort`, `stale`, `timeout`), and have no trained
token. A fault if they are more than 5 %, and if of one that is left out and one of its step that is
kept, the former is longer in more than 75 % of pairs, certainly more than the 50 % of chance (the
interval is over prompts). The finding says how much harder they are: reward, hops.

Counts in a trainer's own log (`dropped_stale_samples` of verl, `stale_results_dropped` of
open-instruct, `off_policy/dropped` of prime-rl) are noted: they do not say which rollouts were
dropped. Unknown if trained tokens are not recorded: a row that never came back must be logged with
`trained_tokens` 0, or it cannot be seen.

## Probe
None: the sign is read off one batch.

## Experiment
A planted fault against none, matched seeds; the outcome is the held-out reward.

## Fix
Bound staleness by pacing: start no more rollouts than can be trained in time, and train the oldest
first. Where a rollout is too old, correct with the sampler's log-probs instead of dropping it. Give
the slow ones more time (`max_off_policy_steps`, `staleness_threshold`, `async_steps`).

## Not to be confused with
H14 end-of-sequence: finished rollouts of any length are taken for cut ones. H04 and H13: a limit
cuts what is long, and says so. H17 stale-sampler: old rollouts are trained on. H35 length-bias: all
are trained, with another weight.

## References
tinker-cookbook pull request 822 (slow, mostly harder problems starve); prime-rl pull request 2960
(a group is aborted once one of it is too old); open-instruct pull request 1738; marin issue 8955 (a
fifth of all groups discarded as stale). AReaL (arXiv 2505.24298) and Magistral (arXiv 2506.10910)
keep the lengths of what is trained those of what was asked.
"""

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.slow_rows import LEFT_OUT, SLOWER, left_out, slow_are_left_out, slower
from flatline.trace import Trace

COUNTS = ("dropped_stale_samples", "stale_results_dropped", "off_policy/dropped")
"""How trainers call the number of rollouts that came too late."""
HARDER = {"completion_tokens": "tokens", "reward": "reward", "hops": "hops"}
"""What is compared of those that are left out and the rest, and what it is called."""


class SlowDropped(Hypothesis):
    id = "H65"
    name = "slow-dropped"
    headline = "Slow rollouts are thrown away, so you train on the short and easy ones."
    explains = ("H14", "H35", "H43")
    meaning = "What is trained is easier and shorter than what was asked: the rest is never learnt."
    fix = (
        "Start no more rollouts than can be trained in time, instead of dropping what comes late; "
        "or allow them to be older and correct with the sampler's log-probs."
    )
    mechanism = "Long rollouts have no loss; in the other arm they have."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Are the rollouts that are never trained the slow ones?"""
        counted = _counted(trace)
        try:
            lost = left_out(trace)
        except NotRecorded:
            if counted:
                return self._noted(counted)
            raise
        if not len(lost):
            return self.too_little("no rollout was recorded")
        share = float(lost.mean())
        if slow_are_left_out(trace):
            return self._dropped(trace, lost, share)
        if counted:
            return self._noted(counted)
        if share > LEFT_OUT:
            return self.too_little(
                f"{share:.1%} of the rollouts that no limit cut are never trained, and whether "
                "these are the longer ones is not certain; see H14"
            )
        return self.found(
            Level.OK,
            f"{share:.1%} of the rollouts that no limit cut are never trained"
            + (", and they are not certainly the longer ones." if share else "."),
            measured=share,
            expected=f"below {LEFT_OUT:g}",
            looked_at=len(lost),
        )

    def _dropped(self, trace: Trace, lost: np.ndarray, share: float) -> Finding:
        chance = slower(trace)
        return self.found(
            Level.FAULT,
            f"{share:.0%} of the rollouts are sampled and never trained, and they are the slow "
            f"ones: of two, the one left out is longer in {chance.value:.0%} of cases "
            f"[{chance.low:.0%}, {chance.high:.0%}]. Left out against trained: "
            f"{_compared(trace, lost)}.",
            measured=chance,
            expected=f"below {SLOWER:g}",
            evidence=_examples(trace, lost),
            severity=1 + share,
            proven=True,
        )

    def _noted(self, counted: dict[str, float]) -> Finding:
        told = ", ".join(f"`{name}` comes to {count:g}" for name, count in counted.items())
        return self.found(
            Level.NOTE,
            f"Rollouts are thrown away for coming too late: {told}. The log does not "
            "say which ones; slow ones are hard ones.",
            expected="0",
            points_at_cause=True,
        )


def _counted(trace: Trace) -> dict[str, float]:
    """What the trainer's own log says was dropped, where it is more than nothing."""
    named = [name for name in trace.metric_names if name.endswith(COUNTS)]
    most = {name: float(np.nanmax(trace.metric(name), initial=0.0)) for name in named}
    return {name: count for name, count in most.items() if count > 0}


def _compared(trace: Trace, lost: np.ndarray) -> str:
    """`41 against 22 tokens, 0.31 against 0.64 reward`, as far as it is recorded."""
    found = []
    for column, word in HARDER.items():
        if column in trace.rollouts:
            left, kept = (trace.rollouts[column][rows] for rows in (lost, ~lost))
            if np.isfinite(left).any() and np.isfinite(kept).any():
                found.append(f"{np.nanmean(left):.3g} against {np.nanmean(kept):.3g} {word}")
    return ", ".join(found)


def _examples(trace: Trace, lost: np.ndarray) -> list[Evidence]:
    rows = np.flatnonzero(lost)
    longest = rows[np.argsort(-np.nan_to_num(trace.rollouts["completion_tokens"][rows]))][:3]
    return [
        Evidence.of(
            trace,
            row,
            f"{trace.rollouts['completion_tokens'][row]:.0f} tokens, none of them trained",
        )
        for row in longest
    ]
