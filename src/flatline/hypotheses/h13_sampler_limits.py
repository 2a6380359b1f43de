"""The sampler's limits are tighter than the trainer's: turns end in the middle of a call.

## What goes wrong
A server's `max_tokens` or `max_model_len` is below what the trainer assumes. Turns stop in the
middle of a tool call or an answer, or requests are refused and come back empty. The reward is 0 for
a reason that the policy cannot learn about.

## Sign
The first step of the run, before the policy has changed: turns that a limit cut although the
completion is far from the trainer's limit, and completions without a token of the model. Suspected
where certainly more than one in ten rollouts is cut or empty and these certainly earn less than the
others, or certainly more than one in four; fewer are noted from 2 % on. A completion without an end
token counts as cut only at a limit that is known: a stop string ends it too. Only the start counts:
a policy that learns to ramble meets limits too, later. Healthy runs of the lab have 0 to 2 % at the
start (0 of 26 alarm, interval 0 to 13 %).

## Probe
The sign, read on one batch of the live trainer.

## Experiment
The tokens of a turn (`max_new_tokens`) against twice as many, or a planted fault against none;
matched seeds.

## Fix
Make three limits agree: the server's `max_model_len` must hold the prompt and all turns with what
the tools return; its `max_tokens` a whole turn; the trainer's `max_completion_length` all of them.

## Not to be confused with
H04 context-truncation: documents or prompts are cut. H14 end-of-sequence: completions have ended
and are taken for cut. H24 learning-rate: a broken policy rambles until a limit ends it.

## References
TRL issues 5697 and 6263 (97 to 99 % cut at a default of 256); TRL's tool loop ends a rollout whose
tool result would overflow; ms-swift issue 4950; CoursIA issue 13596 (80 tokens on 40 of 40 steps).
"""

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.arms import longer_turns
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Setting
from flatline.stats import Estimate, cluster_mean, difference_of_means
from flatline.trace import Trace

MANY = 0.1
"""Share of rollouts at the start that a limit cut. Healthy: 0.02 at most; docs/hypotheses.md."""
MOST = 0.25
"""Share that is suspected whatever the others earn, which may be cut in spirit too."""
SOME = 0.02
"""Share from which it is worth a note."""
FEWEST = 4
"""Groups below which nothing is said, and as many as the steps at the start must have."""
ROOM = 0.95
"""Share of the trainer's limit that a cut completion may have used at most."""
CUT = ("turn_length", "length")
"""What a rollout is said to end with when a limit on its tokens ended it."""


class SamplerLimits(Hypothesis):
    id = "H13"
    name = "sampler-limits"
    headline = "Your sampler cuts completions off before your trainer's limit."
    explains = ("H04", "H08", "H39", "H45")
    meaning = "What the policy wanted to write is never scored."
    fix = (
        "Raise {max_completion_length}, and the sampler's own limits, until fewer than 2 % are cut."
    )
    mechanism = "A limit of the sampler ends turns at the start; in the other arm it does not."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """How many rollouts of the start did a limit of the sampler cut?"""
        group = trace.groups().index
        first = _start(trace) & _known(trace)
        cut = _cut(trace)[first]
        share = cluster_mean(cut.astype(float), group[first])
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more prompts are needed")
        text = f"{share.value:.0%} of the first {first.sum()} rollouts were cut by the sampler"
        worse = _loss_of_cut(trace, first, cut, group)
        harmed = share.low > MANY and worse.high < 0
        if harmed or share.low > MOST:
            less = f"; they earn {-worse.value:.2f} less than others" if harmed else ""
            return self.found(
                Level.SUSPECT,
                f"{text}, below the trainer's own limit{less}.",
                measured=share,
                expected=f"below {SOME:.0%}",
                evidence=_examples(trace, np.flatnonzero(first)[cut]),
                severity=share.value / MANY,
            )
        noted = share.low > SOME
        return self.found(
            Level.NOTE if noted else Level.OK,
            f"{text}.",
            measured=share,
            expected=f"below {SOME:.0%}",
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """The tokens of a turn against twice as many."""
        return longer_turns(config)


def _start(trace: Trace) -> np.ndarray:
    """Rollouts of the first step, and of as many more as it takes to have a few groups."""
    steps = trace.groups().step
    enough = steps[min(FEWEST, len(steps)) - 1] if len(steps) else 0
    return np.asarray(trace.rollouts["step"] <= enough)


def _known(trace: Trace) -> np.ndarray:
    """Rollouts of which it is said what ended them, or that hold nothing."""
    told = np.array([end is not None for end in trace.rollouts["finish"]], dtype=bool)
    return np.asarray(told | (trace.rollouts["completion_tokens"] == 0))


def _cut(trace: Trace) -> np.ndarray:
    """Rollouts that a limit below the trainer's ended, or in which the model wrote nothing."""
    length = trace.rollouts["completion_tokens"]
    most = trace.settings.get("max_completion_length") or np.inf
    ended = np.isin(trace.rollouts["finish"].astype(str), CUT) & (length < ROOM * most)
    return np.asarray(ended | (length == 0))


def _loss_of_cut(trace: Trace, first: np.ndarray, cut: np.ndarray, group: np.ndarray) -> Estimate:
    """What cut rollouts earn beyond the others of all groups; one value per group and kind."""
    reward = trace.rollouts["reward"][first]
    known = np.isfinite(reward)
    means = [
        [reward[known & kind & (group[first] == one)] for one in np.unique(group[first])]
        for kind in (~cut, cut)
    ]
    whole, short = ([values.mean() for values in side if len(values)] for side in means)
    return difference_of_means(np.array(whole), np.array(short))


def _examples(trace: Trace, rows: np.ndarray) -> list[Evidence]:
    return [
        Evidence.of(
            trace,
            at,
            f"ended by {trace.rollouts['finish'][at]} after "
            f"{trace.rollouts['completion_tokens'][at]:.0f} tokens",
        )
        for at in rows[:3]
    ]
