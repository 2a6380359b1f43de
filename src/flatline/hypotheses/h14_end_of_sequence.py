"""Completions that have ended are taken for cut ones, or never learn to end.

## What goes wrong
The trainer looks for an end token that the model does not use. With `mask_truncated_completions`
every finished completion is then left out of the loss: the gradient is 0 while rewards differ.
Without it, "truncated" statistics say 100 %, and acting on them makes things worse.

## Sign
- A fault: more than one in twenty rollouts that ended by themselves have no trained token at all.
- Suspected: certainly more than four in five of at least 16 rollouts are called cut although they
  ended well below the trainer's limit, at many different lengths, in one turn. A limit would give
  one length.
- Rollouts that end in neither an end token nor a known limit count here if they have no trained
  token: a stop string may have ended them.
- Suspected: a quarter of 16 or more cut completions close their turn and open the next one, with
  the marks that the prompt has.

Healthy: none of the first two (0 of 26 runs, interval 0 to 13 %; both are invariants).

## Probe
The sign, read on one batch of the live trainer. Also a fault: certainly more than a quarter of the
completions of one turn were cut by the limit although they hold the special token with which the
chat template ends the model's turn, which should have stopped them.

## Experiment
A run with the planted fault against the same without it, matched seeds. On your own trainer:
`mask_truncated_completions` off against on.

## Fix
Give the trainer every id that ends a turn (`generation_config.eos_token_id` may be a list), keep
the sampled end token in the completion, and use a padding id that is not an end id.

## Not to be confused with
H02 token-masking: the end token alone carries no loss, or others do not. H04 context-truncation and
H13 sampler-limits: completions really are cut. H32 zero-variance-groups: the gradient is 0 because
rewards are equal.

## References
TRL pull requests 4970, 4976 and 7039 and issue 6369; torchtune issue 2967; MemGen pull request 33.
TRL's `mean_terminated_length` is 0 where this happens.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS, Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import some_steps
from flatline.hypotheses.slow_rows import slow_are_left_out
from flatline.stats import cluster_mean
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

LEFT_OUT = 0.05
"""Share of ended rollouts without a trained token. An invariant: healthy runs have none."""
FEWEST = 16
"""Rollouts that are called cut, and must have many lengths, before that is doubted."""
NEARLY_ALL = 0.8
"""Share of the rollouts that are called cut and ended below the limit."""
ROOM = 0.95
"""Share of the trainer's limit that a completion which a limit did not end stays below."""
PAST_THE_END = 0.25
"""Share of the completions that go on behind the end of the model's turn. An invariant: none."""
ENDED = ("answered", "eos")
"""What a rollout that ended by itself is said to end with."""
MARK = re.compile(r"<\|[^|<>\s]{1,40}\|>|<(?:start|end)_of_turn>|\[/?INST\]")
"""Marks of turns, as chat templates write them."""
STOPPED = "stop"
"""The same where neither an end token nor a known limit ended it."""


class EndOfSequence(Hypothesis):
    id = "H14"
    name = "end-of-sequence"
    headline = "Your trainer does not recognise where completions end."
    explains = ("H24", "H26", "H27")
    meaning = "Finished completions teach nothing, or their end is never learnt."
    fix = "Set every end-of-turn id as EOS, or turn {mask_truncated_completions} off."
    mechanism = "Ended completions carry no loss; in the other arm they do."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do ended completions carry loss, and are cut ones really cut?"""
        finish = trace.rollouts["finish"].astype(str)
        found = self._left_out(trace, finish) or self._never_ends(trace, finish)
        return found or self._plays_both(trace, finish) or self._fine(trace, finish)

    def probe(self, subject: "Subject") -> Finding:
        """The sign on one batch; and does the model end its turn without being stopped?"""
        seen = self.sign(subject.trace)
        try:
            end = subject.tokenizer_fit().turn_end
        except NotRecorded:
            end = None  # the sign needs no tokenizer
        if seen.level in ALARMS or end is None:
            return seen
        return self._goes_on(subject.trace, end) or seen

    def _goes_on(self, trace: Trace, end: int) -> Finding | None:
        cut = trace.rollouts["finish"].astype(str) == "length"
        if cut.sum() < FEWEST or _has_turns(trace):
            return None
        tokens = trace.tokens(some_steps(trace))
        ended = np.bincount(tokens.row[tokens.ids == end], minlength=len(tokens.rollout_rows)) > 0
        past = cut[tokens.rollout_rows] & ended
        share = cluster_mean(past.astype(float), trace.groups().index[tokens.rollout_rows])
        if share.low < PAST_THE_END:
            return None
        return self.found(
            Level.FAULT,
            f"{share.value:.0%} of the completions write {trace.decode(np.array([end]))!r}, with "
            "which the chat template ends the model's turn, and go on to the limit: it does not "
            "stop the sampler.",
            measured=share,
            expected="0",
            evidence=_examples(trace, tokens.rollout_rows[past]),
            severity=share.value / PAST_THE_END,
            proven=True,
        )

    def _plays_both(self, trace: Trace, finish: np.ndarray) -> Finding | None:
        """Cut completions in which the model opens the turn that its prompt opens with."""
        cut = np.flatnonzero(finish == "length")
        if len(cut) < FEWEST or _has_turns(trace) or "prompt" not in trace.rollouts:
            return None
        table = trace.rollouts
        texts = [(str(table["prompt"][row]), str(table["completion"][row])) for row in cut]
        past = np.array([_goes_on(*one) for one in texts])
        share = cluster_mean(past.astype(float), trace.groups().index[cut])
        if past.mean() < PAST_THE_END or share.low <= 0:
            return None
        found = self.found(
            Level.SUSPECT,
            f"{past.sum()} of {len(cut)} completions that the limit cut close their turn, open the "
            "next one themselves and go on: the token that ends a turn does not stop the sampler.",
            measured=share,
            expected="0",
            evidence=_examples(trace, cut[past]),
            severity=float(past.mean()) / PAST_THE_END,
        )
        return replace(found, explains=(*found.explains, "H04", "H13"))

    def _left_out(self, trace: Trace, finish: np.ndarray) -> Finding | None:
        ended = np.isin(finish, ENDED)
        lost = ended & _without_loss(trace)
        if not lost.any():
            return None
        share = cluster_mean(lost[ended].astype(float), trace.groups().index[ended])
        return self.found(
            Level.FAULT if share.value > LEFT_OUT else Level.NOTE,
            f"{share.value:.0%} of the {ended.sum()} rollouts that ended by themselves have no "
            "trained token: they are taken for cut ones.",
            measured=share,
            expected="0",
            evidence=_examples(trace, np.flatnonzero(lost)),
            severity=share.value / LEFT_OUT,
            proven=not slow_are_left_out(trace),  # of these H65 knows why
            points_at_cause=True,
        )

    def _never_ends(self, trace: Trace, finish: np.ndarray) -> Finding | None:
        most = trace.settings.get("max_completion_length")
        cut = (finish == "length") | (finish == STOPPED) & _without_loss(trace)
        if most is None or cut.sum() < FEWEST or _has_turns(trace):
            return None
        length = trace.rollouts["completion_tokens"][cut]
        odd = length < ROOM * most
        share = cluster_mean((cut & _short(trace, most)).astype(float), trace.groups().index)
        values, times = np.unique(length[odd], return_counts=True)
        # A limit of the sampler would give one length again and again.
        if share.low < NEARLY_ALL or not len(values) or times.max() > odd.sum() / 4:
            return None
        return self.found(
            Level.SUSPECT,
            f"{share.value:.0%} of the rollouts are called cut, but they ended at {len(values)} "
            f"different lengths below the limit of {most}: the end token is not recognised.",
            measured=share,
            expected="cut ones at the limit",
            evidence=_examples(trace, np.flatnonzero(cut)),
            severity=share.value / NEARLY_ALL,
        )

    def _fine(self, trace: Trace, finish: np.ndarray) -> Finding:
        trained = trace.rollouts["trained_tokens"]
        by_itself = np.isin(finish, ENDED) & np.isfinite(trained)
        ended = int((by_itself | (finish == STOPPED) & (trained > 0)).sum())
        if not ended:
            return self.too_little("no rollout is known to have ended by itself, and to be trained")
        return self.found(
            Level.OK,
            f"{ended} of {len(finish)} rollouts ended by themselves, and none of these is left "
            "out of the loss.",
            measured=0.0,
            expected="0 left out",
            looked_at=ended,
        )


def _goes_on(prompt: str, completion: str) -> bool:
    """Whether a completion holds the end of a turn and behind it the mark that opens the prompt's
    turns, both as the prompt itself has them."""
    marks = MARK.findall(prompt)
    if len(marks) < 2:
        return False
    said = MARK.findall(completion)
    opens, closes = marks[0], set(marks[1:]) - {marks[0]}
    later = (mark == opens or mark.startswith(opens) for mark in said[1:])
    return bool(said) and said[0] in closes and any(later)


def _without_loss(trace: Trace) -> np.ndarray:
    """Rollouts that are known to have no trained token."""
    if "trained_tokens" not in trace.rollouts:
        return np.zeros(len(trace.rollouts), dtype=bool)
    return np.asarray(trace.rollouts["trained_tokens"] == 0)


def _short(trace: Trace, most: float) -> np.ndarray:
    return np.asarray(trace.rollouts["completion_tokens"] < ROOM * most)


def _has_turns(trace: Trace) -> bool:
    """In several turns a limit on one turn ends a completion at any length."""
    try:
        return bool(np.nanmax(trace.rollouts["turns"]) > 1)
    except NotRecorded:
        return False


def _examples(trace: Trace, rows: np.ndarray) -> list[Evidence]:
    known = "completion" in trace.rollouts
    return [
        Evidence.of(
            trace,
            at,
            f"ends with {str(trace.rollouts['completion'][at])[-60:]!r}"
            if known
            else f"has {trace.rollouts['completion_tokens'][at]:.0f} tokens",
        )
        for at in rows[:3]
    ]
