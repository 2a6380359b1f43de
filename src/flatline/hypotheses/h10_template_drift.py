"""Sampler and trainer render the conversation differently: the trainer scores another context.

## What goes wrong
The sampler's server renders messages with tools, a default system prompt and a header for each
turn; the trainer renders them again without one of these. Every log-prob then belongs to text in
a different context, and the gradient improves the policy in a conversation that never takes place.

## Sign
Where the recorder knows what the sampler had (flatline's own engine, transformers' `generate`), ids
are compared one by one: a prompt that differs, or a completion that begins to differ where a turn
begins, is a fault, and both texts are shown. Elsewhere the log-probs of the first step show it,
when both sides hold the same weights. If the first turn agrees and the first three tokens of later
turns do not, what comes between turns differs: a fault in float32 (above 1e-3 nat), suspected in
bf16 (above 0.3). If the first turn itself is off by more than 0.1 nat, from its first token on, and
neither noise nor a temperature explains it, the prompts differ: suspected.

## Probe
The sign, read on one batch of the live trainer.

## Experiment
A run with the planted fault against the same without it, matched seeds: text that is rendered again
against ids passed through from sampler to trainer. Both of this hypothesis' faults (the header of a
turn, the tools in the prompt) are taken out together.

## Fix
Tokens in, tokens out: train on the ids that the sampler saw. Where text must be rendered again, use
one renderer with the same tools and assert at each turn that the old ids are a prefix of the new.

## Not to be confused with
H09 loss-mask-as-attention: the context is the same and hidden; the attention mask shows it. H11
retokenisation: the gap begins inside a turn. H21 sampling-parameters: the gap grows with the
log-prob. H23 dropout-in-scoring: two rollouts with the same beginning get different log-probs.

## References
verifiers pull request 476 (header of later turns), commits e7a6cae6b and b581a50de (tools); verl
6501 (a newline at each boundary). Both verifiers defects were in force in the seeds' runs.
"""

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.exchanged_rows import exchanged_rows
from flatline.hypotheses.identity import Identity, identity, judged
from flatline.hypotheses.logprobs import ROUNDING, Gaps, at_equal_weights, prefix_spread
from flatline.trace import Trace

EDGE = 3
"""Tokens at the start of a turn that feel most what comes before it."""
APART, APART_BF16 = 1e-3, 0.3
"""Mean gap there, in nats. Healthy: 1e-6, and 0.025 in bf16; see docs/hypotheses.md."""
AGREES, AGREES_BF16 = ROUNDING, 0.05
"""Mean gap of a first turn that was rendered alike."""
MOST = 0.5
"""Share of the rollouts with several turns in which the gap must begin there."""
OTHER_PROMPT = 0.1
"""Mean gap of the first turn where the prompts differ. Healthy: 0.025 in bf16 at most."""
STRAIGHT = 0.8
"""R² of trainer on sampler above which a temperature explains the gap, and not a context."""
CUT_AT_MOST = 0.5
"""Nats below the sampler, and never above it, that tokens cut off by top-p or top-k explain."""
NOISE = 0.1
"""Share of the gap that may be noise of the trainer's own."""


class TemplateDrift(Hypothesis):
    id = "H10"
    name = "template-drift"
    headline = "Your trainer reads a different conversation than the sampler did."
    explains = ("H03", "H06", "H11", "H20", "H22", "H24")
    meaning = "The policy is improved in a conversation that never takes place."
    fix = "Train on the ids that the sampler saw, and assert that each turn extends the last."
    mechanism = (
        "Trained prompts or beginnings of turns are not what was sampled; in the other arm they "
        "are, id by id."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Are the ids the same; else, where does the gap begin?"""
        known = identity(trace)
        if known is not None:
            return self._by_ids(trace, known)
        gaps = at_equal_weights(trace)
        if not len(gaps):
            return self.too_little("no trained token has both log-probs; one more step is needed")
        return self._between_turns(trace, gaps) or self._prompt(trace, gaps) or self._agrees(gaps)

    def _agrees(self, gaps: Gaps) -> Finding:
        apart = gaps.mean()
        if apart.value > OTHER_PROMPT and not gaps.starts_clean:
            return self.too_little(
                f"sampler and trainer differ by {apart.value:.2g} nat per token, for another "
                "reason than a prompt; see H20, H21 and H23"
            )
        return self.found(
            Level.OK,
            f"At equal weights sampler and trainer differ by {apart.value:.2g} nat, and where "
            "turns begin as little as elsewhere.",
            measured=apart,
            expected=f"below {OTHER_PROMPT:g}",
        )

    def _by_ids(self, trace: Trace, known: Identity) -> Finding:
        # What is re-encoded now and then changes the first token of a turn too; that is H11.
        edges = known.edges if len(known.edges) > len(known.inside) else ()
        wrong = [*known.prompts[:1], *edges, *known.prompts[1:]]
        text = (
            f"{len(known.prompts)} of {known.rollouts} rollouts are trained after another prompt "
            f"than they were sampled after, and {len(edges)} differ where a turn begins."
            if wrong
            else "Prompts and the text between turns are trained id by id as they were sampled, "
            f"in all {known.rollouts} rollouts."
        )
        return judged(self, trace, known, wrong, text, proven=exchanged_rows(trace) is None)

    def _between_turns(self, trace: Trace, gaps: Gaps) -> Finding | None:
        limit, agrees = (APART, AGREES) if gaps.exact else (APART_BF16, AGREES_BF16)
        edge = (gaps.turn > 0) & (gaps.offset < EDGE)
        start, later = gaps.mean(gaps.turn == 0), gaps.mean(edge)
        if not (start.value < agrees and later.low > limit):
            return None
        if _share_begun_at(gaps, edge, limit) < MOST:
            return None
        return self.found(
            Level.FAULT if gaps.exact else Level.SUSPECT,
            f"The first turn agrees to {start.value:.2g} nat, the first tokens of later turns "
            f"differ by {later.value:.2g} [{later.low:.2g}, {later.high:.2g}]: the text between "
            "turns is not what the sampler saw.",
            measured=later,
            expected=f"below {limit:g}",
            evidence=gaps.worst(trace, edge),
            severity=later.value / limit,
        )

    def _prompt(self, trace: Trace, gaps: Gaps) -> Finding | None:
        start = gaps.mean(gaps.turn == 0)
        if not start.low > OTHER_PROMPT or gaps.starts_clean:
            return None
        _, straight = gaps.line()
        noise = prefix_spread(trace, [gaps.place[0][0]]).value
        cut_off = gaps.one_sided and start.value < CUT_AT_MOST
        if straight > STRAIGHT or noise > NOISE * start.value or cut_off:
            return None
        return self.found(
            Level.SUSPECT,
            f"Before any update the first turn differs by {start.value:.2g} [{start.low:.2g}, "
            f"{start.high:.2g}] nat per token: the trainer's prompt is not the sampler's.",
            measured=start,
            expected=f"below {OTHER_PROMPT:g}",
            evidence=gaps.worst(trace, (gaps.turn == 0) & (gaps.offset < EDGE)),
            severity=start.value / OTHER_PROMPT,
        )


def _share_begun_at(gaps: Gaps, edge: np.ndarray, limit: float) -> float:
    """Share of the rollouts with several turns whose first large gap is at the start of a turn."""
    several = np.unique(gaps.rollout[gaps.turn > 0])
    large = np.flatnonzero(np.abs(gaps.gap) > limit)
    rollouts, first = np.unique(gaps.rollout[large], return_index=True)
    begun = rollouts[edge[large[first]]]
    return float(np.isin(several, begun).mean()) if len(several) else 0.0
