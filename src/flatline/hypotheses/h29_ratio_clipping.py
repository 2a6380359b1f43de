"""The clip on the ratio stops most of the update, or is mistaken for a cause where it never acts.

## What goes wrong
With several updates on the same completions the ratio of new to old probability leaves 1, and
tokens beyond 1 ± epsilon have no gradient any more. A narrow epsilon, or many passes, leaves only
the first pass; a symmetric one stops unlikely tokens from becoming likely first. With one update
per batch the ratio is exactly 1, nothing is ever clipped, and epsilon has no effect.

## Sign
The share of trained tokens that are clipped, at steps whose ratio has left 1. Certainly above 0.1
is suspected, unless the reward rises and epsilon is a usual one (at least 0.02, or whole sequences
are clipped); above 0.05 is noted. Where whole sequences are clipped it is their share, and 0.5 and
0.25: its authors clip a hundred times as much as token-wise losses do, and learn faster. Runs in
which the ratio never leaves 1 are ruled out. Healthy: 0.005 with two passes and epsilon 0.2, the
one of 26 runs that has a ratio (0 of 26 alarm, interval 0 to 13 %).

## Probe
Several updates on each batch: one real step, undone, and the share of the next update that the clip
would stop (tokens that have moved beyond it in the direction of their advantage, in units of what
they could still move). Above 0.3 is suspected under an epsilon below 0.02. With a usual epsilon
less rules it out, and more leaves it open: Adam's first step is its largest, and healthy setups
lose 19 to 58 % of a second.

A `delta` of at most 1 is a fault: it is the upper bound of a ratio that begins at 1.

## Experiment
`epsilon` in use against 0.2, where it is smaller, or a planted fault against none; matched seeds.

## Fix
One pass over each batch (`num_iterations=1`, and `steps_per_generation` no larger than
`gradient_accumulation_steps`), or a wider clip above (`epsilon_high=0.28`).

## Not to be confused with
H31 kl-anchor: where the clip stops the reward's pull, the KL's looks strong by comparison. H17
stale-sampler and H23 dropout-in-scoring also move the ratio, without more passes. H22
importance-weights: the ratio to the sampler. H24 learning-rate: steps so large that every second
pass is clipped.

## References
DAPO ("clip higher"). TRL's `clip_ratio/*` are 0 with one update per batch, which is right and not
a symptom. GSPO (2507.18071) clips whole sequences at 3e-4, which token-wise losses cannot use.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import mean_of, reward_rises
from flatline.hypotheses.weights import updates_once
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

MANY, NOTED = 0.1, 0.05
"""Share of trained tokens that are clipped, at steps with a ratio. Healthy: 0.005."""
MANY_WHOLE, NOTED_WHOLE = 0.8, 0.5
"""The same of sequences, where whole ones are clipped. GSPO means to clip many, at 3e-4; a sound
script with that clip had 58 %."""
MOVED = 1e-4
"""Log-ratio that rounding explains."""
FEWEST = 3
"""Steps with a ratio."""
WHOLE = ("sequence", "sequence_token", "product")
"""Levels at which a completion has one ratio."""
STOPPED = 0.3
"""Share of the second update that a narrow clip stops."""
USUAL = 0.2
"""The epsilon that most trainers have."""
NARROW = USUAL / 10
"""Below it nobody clips the ratio of a token on purpose; sequences are clipped at 3e-4."""


class RatioClipping(Hypothesis):
    id = "H29"
    name = "ratio-clipping"
    headline = "The clip on the ratio stops most of your update."
    explains = ("H24", "H31")
    meaning = "Later passes over a batch change nothing."
    fix = "Set {num_iterations} to 1, or widen {epsilon}."
    mechanism = "Most tokens are clipped; in the other arm few are."

    def _capped(self, settings: Mapping[str, Any]) -> Finding | None:
        """Is the upper bound of the ratio below what every ratio begins with?"""
        delta = settings.get("delta")
        if delta is None or delta > 1:
            return None
        return self.found(
            Level.FAULT,
            f"delta is {delta:g}, and the ratio of every token begins at 1: it is cut to {delta:g} "
            "before it is used, so tokens with a positive advantage get no gradient.",
            measured=float(delta),
            expected="above 1 + epsilon, or none",
            headline="Nothing that is rewarded is learnt: `delta` cuts every ratio off.",
            fix="Set delta=None, or to more than 1 + {epsilon}.",
            proven=True,
        )

    def sign(self, trace: Trace) -> Finding:
        """How many tokens are clipped where the ratio has left 1?"""
        capped = self._capped(trace.settings)
        if capped is not None:
            return capped
        share, ratio = trace.steps["clip_share"], trace.steps["ratio_max"]
        left, known = ratio > MOVED, int(np.isfinite(ratio).sum())
        if not left.any():
            return self.not_applicable(
                f"the ratio is 1 at all {known} steps, so nothing is clipped and epsilon has no "
                "effect.",
                looked_at=known,
            )
        moved = np.isfinite(share) & left
        found = mean_of(share[moved])
        if found.n < FEWEST:
            return self.too_little(f"{FEWEST - found.n} more steps with a ratio are needed")
        epsilon = trace.settings.get("epsilon")
        whole = trace.settings.get("importance_sampling_level") in WHOLE
        many, noted = (MANY_WHOLE, NOTED_WHOLE) if whole else (MANY, NOTED)
        suspect = found.low > many and (_narrow(trace.settings) or not reward_rises(trace))
        return self.found(
            Level.SUSPECT if suspect else Level.NOTE if found.low > noted else Level.OK,
            f"At {found.n} steps whose ratio has left 1, {found.value:.1%} [{found.low:.1%}, "
            f"{found.high:.1%}] of the trained {'sequences' if whole else 'tokens'} are clipped"
            f"{'' if epsilon is None else f' (epsilon {epsilon})'}.",
            measured=found,
            expected=f"below {noted:.0%}",
            severity=found.value / many,
        )

    def probe(self, subject: "Subject") -> Finding:
        """How much of the second update on a batch would be clipped?"""
        settings = subject.settings
        capped = self._capped(settings)
        if capped is not None:
            return capped
        if updates_once(settings):
            return self.not_applicable(
                "with one update per batch the ratio is 1.", excluded_by="num_iterations"
            )
        low = float(settings.get("epsilon") or 0.0)
        if not low or settings.get("importance_sampling_level") in WHOLE:
            return self.too_little("a clip of single tokens at a known epsilon is looked at")
        high, step = subject.epsilon_high, subject.one_step()
        share = step.stopped(low, low if high is None else high)
        if not np.isfinite(share):
            return self.too_little("the batch has no gradient; see H26 and H32")
        if share > STOPPED and not _narrow(settings):
            return self.too_little(
                f"epsilon {low:g} is a usual one, and would stop {share:.0%} of a second update on "
                "this batch; the recorded steps of a run would tell"
            )
        return self.found(
            Level.SUSPECT if share > STOPPED else Level.OK,
            f"After the first update on a batch the clip would stop {share:.0%} of the second "
            f"(epsilon {low:g}).",
            measured=share,
            expected=f"below {STOPPED:.0%}",
            severity=share / STOPPED,
            looked_at=int(step.tokens.sum()),
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """A narrow clip against the usual one; with one pass it would change nothing."""
        if config.epsilon >= USUAL or config.num_iterations == 1:
            return None
        return Setting(
            "epsilon",
            USUAL,
            control=f"epsilon {config.epsilon:g}",
            treated=f"epsilon {USUAL:g}",
        )


def _narrow(settings: Mapping[str, Any]) -> bool:
    """Whether the ratio of a token is clipped closer than anybody means to."""
    epsilon = settings.get("epsilon")
    token = settings.get("importance_sampling_level") == "token"
    return token and epsilon is not None and epsilon < NARROW
