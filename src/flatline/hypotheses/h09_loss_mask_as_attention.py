"""The loss mask is also used as attention mask: the trainer does not see what it does not train.

## What goes wrong
Prompt and tool output carry no loss, so their loss mask is 0. Passed on as attention mask, the same
zeros hide them from the model. The trainer then optimises "this text after nothing" instead of
"this text after this question and these documents". Style and format can still improve, so a
single-turn control may look fine; what depends on the question or on a document cannot be learnt.

## Sign
The attention mask that really reached the model: every token in front of a trained one must be
attended. One in a hundred that is hidden is a fault; fewer are noted (a padding id that is also the
end-of-turn id hides single tokens). Where no attention mask was recorded, the log-probs of the
first step: a trainer that is half a nat below the sampler on average sees something else.

## Probe
The sign on one batch. Then the question, and after it the tool output, is replaced by other tokens
of the same length, and the same completions are scored again. Log-probs that do not move at all
cannot depend on what was replaced. The token right after the prompt may move: its row of the mask
is empty, and kernels differ in what they do with an empty row.

## Experiment
A run with the planted fault against the same without it, matched seeds: two arms that differ in the
attention mask alone, the loss mask or ones wherever there is a token. One batch shows the
mechanism; 30 to 100 steps show the held-out reward. No setting of a sound trainer does this.

## Fix
Keep two tensors. The attention mask is 1 on every token that is not padding, made from lengths and
not from `ids != pad`; the loss mask is 1 on what the model wrote.

## Not to be confused with
H10 template-drift: the trainer sees a context, but another one; the mask is all ones and replacing
the question does change the log-probs. H02 token-masking: the wrong tokens carry loss, but all are
seen. H03 kl-divergence: an exploding KL is what this fault looks like with beta above 0.

## References
verifiers 0.1.2 to 0.1.6 (commit 8d986287b set the prompt mask to 0, pull request 505 separated the
two), the versions of the seeds' runs. No seed names it. Their "KL reached 1e5 with beta 0.04, gone
with beta 0, no learning either way" is what this fault does when it is planted in the lab.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import MASK_STEPS, UNSURE, at_equal_weights, some_steps
from flatline.hypotheses.logs import in_steps
from flatline.trace import Trace
from flatline.trace.tokens import Tokens

if TYPE_CHECKING:
    from flatline.live.records import ContextEffect
    from flatline.live.subject import Subject

HIDDEN = 0.01
"""Share of hidden context tokens that is a fault. An invariant: healthy runs hide none."""
BLIND = 0.5
"""Nats that a blind trainer lies below the sampler. False alarms: see docs/hypotheses.md."""
MOVED = 1e-6
"""Nats; a log-prob that sees the replaced tokens moves by more, one that does not by exactly 0."""
STILL = 0.1
"""Share of tokens that may move although the context is hidden: those right after it."""
SHOWN = 160
"""Characters of the hidden text that an example quotes."""
TOKENS = 4
"""Tokens in doubt per rollout that the probe needs; what is certain cannot move."""


class LossMaskAsAttention(Hypothesis):
    id = "H09"
    name = "loss-mask-as-attention"
    headline = "Your trainer cannot see all of the text that its completions answer."
    explains = (
        "H01",
        "H03",
        "H06",
        "H07",
        "H08",
        "H10",
        "H11",
        "H15",  # a token that may see nothing sees whatever is beside it
        "H17",
        "H20",
        "H21",
        "H24",
        "H30",
    )
    meaning = "What depends on the hidden context cannot be learnt, whatever is tuned."
    fix = (
        "Pass an attention mask of 1 on every token that is not padding; use the loss mask in the "
        "loss alone."
    )
    mechanism = (
        "Context in front of trained tokens is hidden from the trainer; in the other arm all of it "
        "is seen."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Is a token in front of a trained one hidden?"""
        try:
            return self._by_mask(trace)
        except NotRecorded as missing:
            if "attended" not in missing.column:
                raise
            return self._by_gap(trace)

    def probe(self, subject: "Subject") -> Finding:
        """Does the trainer notice another question, or other documents?"""
        seen = self.sign(subject.trace)
        if seen.level is Level.FAULT:
            return seen
        batch = subject.batch
        doubt = int((batch.trained_T & (batch.trainer_T < UNSURE)).sum())
        if doubt < TOKENS * batch.rollouts:
            return self.too_little(
                f"only {doubt} trained tokens of {batch.rollouts} rollouts are in doubt; a batch "
                "with longer completions is needed"
            )
        effects = [subject.context_effect("prompt"), subject.context_effect("tool")]
        known = [effect for effect in effects if effect.change_T.size]
        if not known:
            return self.too_little(
                "no part of the context could be replaced; another batch is needed"
            )
        blind = [effect for effect in known if _share_moved(effect) <= _allowed(effect)]
        if blind:
            return self._blind(blind, subject.trace)
        told = ", ".join(f"{effect.which} {effect.mean:.2g}" for effect in known)
        return self.found(
            Level.OK,
            f"Other tokens in the context move the trainer's log-probs (mean change: {told} nat).",
            measured=min(effect.mean for effect in known),
            expected="not 0",
            looked_at=sum(effect.change_T.size for effect in known),
        )

    def _by_mask(self, trace: Trace) -> Finding:
        steps = some_steps(trace, MASK_STEPS)
        tokens = trace.tokens(steps)
        seen, prompt_seen = tokens.attended, tokens.prompt_attended
        rows = len(tokens.rollout_rows)
        last = np.full(rows, -1)
        np.maximum.at(last, tokens.row[tokens.trained], tokens.position[tokens.trained])
        # A rollout that no pass trained on has no mask at all; its zeros hide nothing.
        passed = np.bincount(tokens.row[seen], minlength=rows) > 0
        context = passed[tokens.row] & ~tokens.trained & (tokens.position < last[tokens.row])
        of_prompt = (passed & (last >= 0))[tokens.prompt_row]
        hidden = int((context & ~seen).sum()), int((of_prompt & ~prompt_seen).sum())
        total = int(context.sum()), int(of_prompt.sum())
        if not sum(total):
            return self.too_little("no trained token has a context; one more step is needed")
        share = sum(hidden) / sum(total)
        text = (
            f"{hidden[1]} of {total[1]} prompt tokens and {hidden[0]} of {total[0]} other tokens "
            f"in front of trained ones were hidden from the trainer ({share:.1%})"
            f"{in_steps(trace, steps)}."
        )
        level = Level.FAULT if share >= HIDDEN else Level.NOTE if share else Level.OK
        evidence = []
        if share:
            hides = np.bincount(tokens.prompt_row[of_prompt & ~prompt_seen], minlength=rows)
            hides += np.bincount(tokens.row[context & ~seen], minlength=rows)
            evidence = [
                _example(trace, tokens, row) for row in np.argsort(-hides)[:2] if hides[row]
            ]
        return self.found(
            level,
            text,
            measured=share,
            expected="0 hidden",
            looked_at=sum(total),
            headline=_unseen(trace, _mostly(hidden[1], total[1]), _mostly(hidden[0], total[0])),
            evidence=evidence,
            severity=share / HIDDEN,
            points_at_cause=True,
        )

    def _by_gap(self, trace: Trace) -> Finding:
        """Without a mask only a blunt test is left: how far below the sampler the trainer is."""
        gaps = at_equal_weights(trace)
        below = gaps.mean()
        if below.low > BLIND and gaps.gap.mean() < 0:
            return self.found(
                Level.SUSPECT,
                f"Before any update the trainer's log-probs differ from the sampler's by {below} "
                "nat per token, all below: it sees another context, or none.",
                measured=below,
                expected="below 0.05",
                headline="Your trainer reads a different context than the sampler, or none.",
                evidence=gaps.worst(trace, gaps.unsure),
                severity=below.value / BLIND,
            )
        if below.high < BLIND:
            return self.found(
                Level.OK,
                f"Sampler and trainer differ by {below.value:.2g} nat per token at equal weights; "
                "a trainer that cannot see the context would be far below.",
                measured=below,
                expected=f"below {BLIND}",
            )
        return self.too_little(f"the gap is {below} nat; more prompts in the first step are needed")

    def _blind(self, blind: "list[ContextEffect]", trace: Trace) -> Finding:
        which = {effect.which for effect in blind}
        parts = " and ".join(
            {"prompt": "the question", "tool": "tool output"}[e.which] for e in blind
        )
        worst = blind[0]
        return self.found(
            Level.FAULT,
            f"Replacing {parts} moves {_share_moved(worst):.0%} of the trainer's "
            f"{worst.change_T.size} log-probs after it: it cannot see {parts}.",
            headline=_unseen(trace, "prompt" in which, "tool" in which),
            measured=worst.mean,
            expected="above 0.1 nat",
            severity=1 / HIDDEN,
        )


def _mostly(hidden: int, of: int) -> bool:
    return 2 * hidden > of


def _unseen(trace: Trace, question: bool, tools: bool) -> str | None:
    """The headline where most of a part is hidden; None where it is a piece here and there."""
    returned = "the documents" if "supporting" in trace.rollouts else "the tool output"
    parts = [name for name, hidden in (("the question", question), (returned, tools)) if hidden]
    return f"Your trainer cannot see {' or '.join(parts)}." if parts else None


def _share_moved(effect: "ContextEffect") -> float:
    return float((effect.change_T > MOVED).mean())


def _allowed(effect: "ContextEffect") -> float:
    return max(STILL, len(effect.rollouts) / effect.change_T.size)


def _example(trace: Trace, tokens: Tokens, row: int) -> Evidence:
    """The beginning of what one rollout's trainer could not see."""
    prompt = tokens.prompt_ids[(tokens.prompt_row == row) & ~tokens.prompt_attended]
    later = tokens.ids[(tokens.row == row) & ~tokens.attended]
    at = tokens.rollout_rows[row]
    text = trace.decode([*prompt, *later])
    return Evidence.of(trace, at, f"hidden: {text[:SHOWN]!r} (of {len(text)} characters)")
