"""The loss mask marks tokens other than those the model wrote.

## What goes wrong
Tool output that carries loss is imitated or suppressed as if the model had chosen it, and drowns
the model's own tokens. A mask that is shifted by one trains the template and skips the end of a
turn. Turns without loss cannot improve, however good the reward is.

## Sign
Who wrote a token is known from how it came to be, so every trained token must be the model's, and
every token of the model must be trained. A trained token of a tool or of the template is a fault,
and so is a first or last token of turns that is regularly left out. Other tokens of the model that
carry no loss are suspected above 1 %, since somebody may have meant it. Rollouts without any
trained token are left out: that is how truncated ones are masked on purpose. Where no rollout has
one, none has ended by itself (H14) and `mask_truncated_completions` is off, the mask leaves out
everything: a fault, of fewer than four prompts suspected. Where authors are known from the mask
alone, stretches of trained tokens for which the sampler gives a log-prob of exactly 0 and the
trainer a bad one were never sampled. Where nearly all trained tokens are of that kind and nearly
all tokens without loss have a log-prob of the sampler that the trainer confirms, the mask is
inverted.

## Probe
The sign, read on one batch of the live trainer.

## Experiment
A run with the planted fault against the same without it, matched seeds: the mask alone differs. The
mask of a sound trainer is no setting, so without a planted fault there is nothing to compare.
Search-R1 reports that masking what was retrieved is needed for a stable run; in the lab, training
tool tokens as well only slows learning, and training nothing else destroys the policy.

## Fix
Make the mask from provenance, one entry per id when the id is appended, and never by parsing the
finished text.

## Not to be confused with
H09 loss-mask-as-attention: the mask is right and used twice. H07 multi-turn: all turns but the
first carry no loss. H14 end-of-sequence handling: the end is trained, but cut or never sampled.

## References
Search-R1 (arXiv 2503.09516). TRL `tool_mask`. The seeds' H02 asks for "token boundary logging" and
a look at what is trained: this is that look, at every token.
"""

from dataclasses import replace

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.groups import trains_nothing
from flatline.hypotheses.logprobs import MASK_STEPS, some_steps
from flatline.hypotheses.logs import in_steps
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.tokens import UNKNOWN_AUTHOR, Tokens

OF_NO_LOSS = ("H26", "H27")
"""What else fires where no token is trained."""
ENDED = ("answered", "eos")
"""What a rollout that ended by itself is said to end with."""
LOST = 0.01
"""Share of the model's tokens without loss. Healthy runs have none; see docs/hypotheses.md."""
REGULAR = 0.5
"""Share of turns whose first or last token carries no loss that is a rule and not a choice."""
NEVER_SAMPLED = 0.05
"""Share of trained tokens without a sampled log-prob. See docs/hypotheses.md."""
STRETCH = 3
"""Such tokens in a row; a single certain token may have a log-prob of exactly 0."""
BAD = -1.0
"""Nats; mean log-prob of the trainer over a stretch that nobody certain would have sampled."""
NEARLY_ALL = 0.9
"""Share of the trained tokens that nobody drew, and of the others that somebody did, where the mask
is inverted. Healthy: both near 0; a greedy sampler may give 0 for what it draws, and then draws
nothing else."""
UNCERTAIN = -1e-3
"""Nats; mean log-prob of the trainer at what nobody drew. What an environment writes may be easy to
guess; the sampler's exact 0 would be certainty to the last bit."""
CONFIRMED = 0.25
"""Gap at what was drawn, as a share of the gap at what was not."""
OF_INVERSION = ("H06", "H07", "H10", "H12", "H17", "H18", "H19", "H21", "H63")
"""What else compares log-probs of what the mask says is the model's."""
AGREE = 0.1
"""Nats; sampler and trainer must agree elsewhere, or a blind trainer would look like this."""


class TokenMasking(Hypothesis):
    id = "H02"
    name = "token-masking"
    headline = "Your loss is computed on the wrong tokens."
    explains = ("H03", "H14", "H20", "H22", "H24", "H30")
    meaning = "The gradient goes to tokens that the model did not choose, or misses some it did."
    fix = "Set the loss mask to 1 exactly on the ids that the model sampled, ends of turns too."
    mechanism = "The loss mask marks other tokens than the model's; in the other arm exactly those."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Is every trained token the model's, and every token of the model trained?"""
        steps = some_steps(trace, MASK_STEPS)
        tokens = trace.tokens(steps)
        if not tokens.trained.any():
            return self._nothing(trace, tokens)
        known = tokens.author != UNKNOWN_AUTHOR
        model, trained = tokens.author == Author.MODEL, tokens.trained
        used = np.bincount(tokens.row[trained], minlength=len(tokens.rollout_rows)) > 0
        if not (trained & known).any():
            return self.too_little("who wrote the trained tokens is not known")
        foreign = trained & known & ~model
        if foreign.any():
            return self._foreign(trace, tokens, foreign)
        lost = model & ~trained & used[tokens.row]
        if lost.any():
            return self._lost(trace, tokens, lost, int((model & used[tokens.row]).sum()))
        if _is_inverted(tokens):
            return self._inverted(trace, tokens)
        stretches = _never_sampled(tokens)
        share = float(stretches.sum() / trained.sum())
        if share > NEVER_SAMPLED:
            return self.found(
                Level.FAULT,
                f"{share:.0%} of {trained.sum()} trained tokens are in stretches for which the "
                "sampler gives a log-prob of exactly 0 and the trainer a bad one: they were never "
                "sampled.",
                measured=share,
                expected="0",
                evidence=_examples(trace, tokens, stretches),
                severity=share / NEVER_SAMPLED,
            )
        whose = int((trained & known).sum())
        some = "" if whose == trained.sum() else f" of {trained.sum()} whose author is known"
        return self.found(
            Level.OK,
            f"All {whose} trained tokens{some}{in_steps(trace, steps)} were written by the "
            "model, and none of its tokens is left out.",
            measured=0.0,
            expected="0 others",
            looked_at=whose,
        )

    def _nothing(self, trace: Trace, tokens: Tokens) -> Finding:
        """No token carries loss, though nobody asked for cut ones to be left out and none of these
        has ended, so that it could be taken for one (H14)."""
        level = trains_nothing(trace)
        asked = trace.settings.get("mask_truncated_completions")
        if level is None or asked or np.isin(trace.rollouts["finish"].astype(str), ENDED).any():
            return self.too_little("no token carries loss; see H04 and H14")
        found = self.found(
            level,
            f"None of the {len(tokens)} tokens of {len(trace.rollouts)} completions carries loss.",
            measured=1.0,
            expected="every token of the model",
            severity=1 / LOST,
            proven=True,
        )
        return replace(found, explains=(*self.explains, *OF_NO_LOSS))

    def _foreign(self, trace: Trace, tokens: Tokens, foreign: np.ndarray) -> Finding:
        share = float(foreign.sum() / tokens.trained.sum())
        begins = tokens.first_of_turn
        hint = ""
        if (begins & ~tokens.trained).sum() > REGULAR * begins.sum() and share < REGULAR:
            hint = " Turns lose their first tokens as well: the mask is shifted."
        return self.found(
            Level.FAULT,
            f"{int(foreign.sum())} of {int(tokens.trained.sum())} trained tokens ({share:.1%}) "
            f"were not written by the model.{hint}",
            measured=share,
            expected="0",
            evidence=_examples(trace, tokens, foreign),
            severity=share / LOST,
        )

    def _inverted(self, trace: Trace, tokens: Tokens) -> Finding:
        trained, drawn = tokens.trained, _drawn(tokens)
        left_out = _beside_trained(tokens)
        never = trained & ~drawn
        found = self.found(
            Level.FAULT,
            f"{int(never.sum())} of {int(trained.sum())} trained tokens were drawn by nobody (the "
            "sampler's log-prob is missing or exactly 0, the trainer's "
            f"{np.nanmean(tokens.trainer[never]):.1f} on average), and "
            f"{int((left_out & drawn).sum())} of {int(left_out.sum())} tokens without loss were "
            "drawn by the sampler: the mask is inverted.",
            measured=float(never.sum() / trained.sum()),
            expected="0",
            evidence=_examples(trace, tokens, never, known=False),
            severity=1 / LOST,
            headline="Your loss mask is inverted: the model's own tokens carry no loss.",
            fix="Invert the mask (`env_mask`, `tool_mask`): 1 on the ids that the model "
            "sampled, 0 on what the environment wrote.",
            proven=True,
        )
        return replace(found, explains=(*self.explains, *OF_INVERSION))

    def _lost(self, trace: Trace, tokens: Tokens, lost: np.ndarray, written: int) -> Finding:
        share = float(lost.sum() / written)
        reached = tokens.turn[tokens.trained]
        edges = {"first": tokens.first_of_turn, "last": _ends(tokens)}
        regular = [
            name
            for name, edge in edges.items()
            if (lost & edge).sum() > REGULAR * edge.sum() and lost[edge].mean() > 2 * share
        ]
        text = f"{int(lost.sum())} of {written} tokens of the model ({share:.1%}) carry no loss"
        if regular:
            level, text = Level.FAULT, f"{text}, the {regular[-1]} of most turns among them."
        elif reached.max() == 0 and tokens.turn.max() > 0:
            level, text = Level.SUSPECT, f"{text}: only first turns are trained (see H07)."
        else:
            level, text = (Level.SUSPECT if share > LOST else Level.NOTE), f"{text}."
        return self.found(
            level,
            text,
            measured=share,
            expected="0",
            evidence=_examples(trace, tokens, lost),
            severity=share / LOST,
            points_at_cause=True,
        )


def _ends(tokens: Tokens) -> np.ndarray:
    model = tokens.author == Author.MODEL
    follows = np.concatenate([model[1:] & (tokens.position[1:] > 0), [False]])[: len(model)]
    return np.asarray(model & ~follows)


def _drawn(tokens: Tokens) -> np.ndarray:
    """Tokens that the sampler gives a log-prob for. Exactly 0 stands for none, or for certainty."""
    return np.asarray(np.isfinite(tokens.sampler) & (tokens.sampler != 0))


def _beside_trained(tokens: Tokens) -> np.ndarray:
    """Tokens without loss in rollouts that have some with it."""
    rows = np.bincount(tokens.row[tokens.trained], minlength=len(tokens.rollout_rows)) > 0
    return np.asarray(rows[tokens.row] & ~tokens.trained)


def _is_inverted(tokens: Tokens) -> bool:
    """Whether what carries loss was drawn by nobody, and what carries none by the sampler."""
    try:
        known, drawn = np.isfinite(tokens.trainer), _drawn(tokens)
    except NotRecorded:
        return False
    trained, left_out = tokens.trained & known, _beside_trained(tokens) & known
    if min(trained.sum(), left_out.sum()) < STRETCH:
        return False
    if min((~drawn)[trained].mean(), drawn[left_out].mean()) < NEARLY_ALL:
        return False
    never = tokens.trainer[trained & ~drawn].mean()
    gap = np.abs(tokens.trainer - tokens.sampler)[left_out & drawn].mean()
    return bool(never < UNCERTAIN and gap < CONFIRMED * -never)


def _never_sampled(tokens: Tokens) -> np.ndarray:
    """Trained tokens in stretches that the sampler knows nothing of, where it agrees elsewhere."""
    try:
        sampler, trainer = tokens.sampler, tokens.trainer
    except NotRecorded:
        return np.zeros(len(tokens), dtype=bool)
    trained = tokens.trained & np.isfinite(trainer)
    unknown = trained & (np.isnan(sampler) | (sampler == 0))
    others = trained & ~unknown
    if not others.any() or np.abs(sampler - trainer)[others].mean() > AGREE:
        return np.zeros(len(tokens), dtype=bool)
    goes_on = np.concatenate([[False], unknown[:-1] & (tokens.position[1:] > 0)])
    number = np.cumsum(unknown & ~goes_on) * unknown
    length = np.bincount(number)
    mean = np.bincount(number, weights=np.where(unknown, trainer, 0.0)) / np.maximum(length, 1)
    return np.asarray(unknown & (length >= STRETCH)[number] & (mean < BAD)[number])


def _examples(
    trace: Trace, tokens: Tokens, where: np.ndarray, *, known: bool = True
) -> list[Evidence]:
    """The first such stretch of up to three rollouts; who wrote it, where that is `known` from more
    than the mask."""
    found = []
    for row in np.unique(tokens.row[where])[:3]:
        here = np.flatnonzero(where & (tokens.row == row))
        stretch = here[here - here[0] == np.arange(len(here))][:12]
        at = tokens.rollout_rows[row]
        author = f"the {Author(int(tokens.author[stretch[0]])).name.lower()}" if known else "nobody"
        made = "written by" if known else "drawn by"
        loss = "carries loss" if tokens.trained[stretch[0]] else "carries no loss"
        found.append(
            Evidence.of(
                trace, at, f"{trace.decode(tokens.ids[stretch])!r}, {made} {author}, {loss}"
            )
        )
    return found
