"""Completions are decoded to text and encoded again: the trained ids are not the sampled ones.

## What goes wrong
Decoding and encoding is not the identity. A model may spell a word in other pieces than its
tokenizer would, tool calls are parsed and written again with other blanks, and text is stripped.
The gradient then lands on ids that were never sampled, at log-probs that can be extreme.

## Sign
Where the recorder knows what was sampled (flatline's own engine, transformers' `generate`), ids are
compared one by one: a completion that begins to differ inside the model's own words is a fault, and
both texts are shown.
Elsewhere the log-probs of the first step show it, when both sides hold the same weights: rollouts
that agree to rounding up to a token inside a turn and jump there by more than 1 nat, in two prompts
or more. In float32 that is a fault, since nothing else makes a clean rollout jump. In bf16 it is
suspected where trainer log-probs below -10 meet sampler log-probs above -5 while most tokens agree.
A change that the model finds equally likely is not seen in log-probs.

## Probe
The sign, read on one batch of the live trainer.

## Experiment
A run with the planted fault against the same without it, matched seeds: text encoded again against
ids passed through. The share of rollouts with a mismatch must flip; outcome is the held-out reward.

## Fix
Ask the sampler for its token ids (`return_token_ids`), append them as they are, and tokenise only
what the environment adds.

## Not to be confused with
H10 template-drift: the gap begins where a turn begins, in nearly all rollouts. H21: the gap follows
the log-prob on all tokens. H23 dropout-in-scoring: noise on all tokens. H02 token-masking: the ids
are right and the mask is not.

## References
vLLM, "No more retokenization drift" (2025-10-22). TRL issue 5224. verifiers before token ids were
passed through.
"""

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.exchanged_rows import exchanged_rows
from flatline.hypotheses.h10_template_drift import EDGE
from flatline.hypotheses.identity import Identity, identity, judged
from flatline.hypotheses.logprobs import ROUNDING, Gaps, at_equal_weights, prefix_spread
from flatline.trace import Trace

JUMP = 1.0
"""Nats by which a clean rollout jumps. Healthy in float32: 2e-4 at most."""
CLEAN = 10 * ROUNDING
"""Largest gap before the jump, and largest noise of the trainer's own."""
FEWEST = 2
"""Prompts in which it must happen: one may be a broken rollout."""
INSIDE = 0.5
"""Share of the jumps that are inside a turn and not at its start."""
UNLIKELY, LIKELY = -10.0, -5.0
"""Log-probs that a trainer and a sampler of the same ids do not have together, in bf16 either."""
MOST_AGREE = 0.05
"""Median gap in nats of the other tokens; healthy in bf16: below 0.025."""


class Retokenisation(Hypothesis):
    id = "H11"
    name = "retokenisation"
    headline = "Your trainer trains on different tokens than were sampled."
    explains = ("H03", "H20", "H22", "H24")
    meaning = "The gradient changes the probability of ids that the model never chose."
    fix = "Pass the sampled token ids through to the trainer; encode only what the tools return."
    mechanism = (
        "Trained ids differ from sampled ones inside the model's own words; in the other arm none "
        "does."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Are the ids the same; else, do clean rollouts jump inside a turn?"""
        known = identity(trace)
        if known is not None:
            return self._by_ids(trace, known)
        gaps = at_equal_weights(trace)
        if not len(gaps):
            return self.too_little("no trained token has both log-probs; one more step is needed")
        size = np.abs(gaps.gap)
        if prefix_spread(trace, [gaps.place[0][0]]).value > CLEAN:
            return self.too_little("the trainer's own log-probs are noisy; see H23")
        exact = gaps.exact or gaps.starts_clean
        if exact:
            jumps = _jumps(gaps, size)
        else:
            odd = (gaps.trainer < UNLIKELY) & (gaps.sampler > LIKELY)
            jumps = np.flatnonzero(odd & (np.median(size) < MOST_AGREE))
        prompts = len(np.unique(gaps.prompt[jumps]))
        # The first token of all proves the prompt; at later turns the template may be to blame.
        begun = np.where(gaps.turn > 0, gaps.offset >= EDGE, gaps.offset > 0)[jumps]
        if prompts < FEWEST or begun.mean() < INSIDE:
            return self._none(gaps, size, prompts)
        rollouts = len(np.unique(gaps.rollout[jumps]))
        return self.found(
            Level.FAULT if exact else Level.SUSPECT,
            f"In {rollouts} of {len(np.unique(gaps.rollout))} rollouts ({prompts} prompts) the "
            f"trainer's log-prob jumps inside a turn by up to {size[jumps].max():.2g} nat, before "
            "any update: those ids are not what was sampled.",
            measured=rollouts / len(np.unique(gaps.rollout)),
            expected="0 rollouts",
            evidence=gaps.worst(trace, np.isin(np.arange(len(gaps)), jumps)),
            severity=prompts / FEWEST,
        )

    def _by_ids(self, trace: Trace, known: Identity) -> Finding:
        text = (
            f"{len(known.inside)} of {known.rollouts} rollouts are trained on other ids than were "
        )
        text += (
            "sampled, from a place inside the model's own words on."
            if known.inside
            else "sampled inside the model's own words."
        )
        proven = exchanged_rows(trace) is None
        return judged(self, trace, known, known.inside, text, proven=proven)

    def _none(self, gaps: Gaps, size: np.ndarray, prompts: int) -> Finding:
        """No jump inside a turn; what jumps elsewhere, or once, leaves it open."""
        if prompts:
            where = "where a turn begins; see H10" if prompts >= FEWEST else "of one prompt alone"
            return self.too_little(f"log-probs jump by up to {size.max():.2g} nat {where}")
        if not gaps.exact and np.median(size) >= MOST_AGREE:
            return self.too_little(
                "sampler and trainer disagree on most tokens, so single ones do not stand out; see "
                "H09, H10, H21 and H23"
            )
        return self.found(
            Level.OK,
            f"No rollout that starts clean jumps inside a turn (largest gap {size.max():.2g} nat).",
            measured=float(size.max()),
            expected=f"below {JUMP:g}",
            looked_at=len(np.unique(gaps.rollout)),
        )


def _jumps(gaps: Gaps, size: np.ndarray) -> np.ndarray:
    """For each rollout, its first gap above `CLEAN`, where that is a jump at once or nearly so."""
    large = np.flatnonzero(size > CLEAN)
    _, first = np.unique(gaps.rollout[large], return_index=True)
    onset = large[first]
    return np.array([token for token in onset if size[token] > JUMP], dtype=int)
