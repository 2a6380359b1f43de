"""Something goes wrong only in rollouts of several turns: later turns do not reach the loss.

## What goes wrong
A trainer made for single turns got a tool loop. Its mask ends at the first end of turn, or its
bookkeeping knows one completion only. The first turn is trained, what follows never is: the policy
learns how to begin and not how to go on. A task with one turn trains as it should.

## Sign
For every rollout, which of the model's turns carry loss. A fault where all rollouts lose every turn
from the same one on, and none before it. Also reported, as a note: the sampler-trainer gap of the
first step by turn, because a gap that begins with the second turn is one that only several turns
show.

## Probe
None: the sign is read from one batch.

## Experiment
A run with the planted fault against the same without it, matched seeds. No other single setting
takes the turns away: with one turn instead of eight the task itself is a different one, so the
outcome moves whatever the trainer does. To bisect your own setup, climb the ladder of H00, whose
rungs separate what needs the question from what needs a tool's answer.

## Fix
Take the loss mask from who wrote each token, over the whole rollout.

## Not to be confused with
H02 token-masking: the wrong tokens carry loss in any turn, or turns counted from the end. H09, H10
and H11 also need several turns to show in full; they change log-probs, not which turns are trained.

## References
The seeds concluded from "GSM8K learns, MuSiQue does not" that the trainer is sound and several
turns are the problem. On their stack single turns could improve without seeing the question (H09),
so the control could not clear the trainer. SkyRL pull request 1507 (advantages only at the last
turn).
"""

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import MASK_STEPS, at_equal_weights, some_steps
from flatline.hypotheses.logs import in_steps
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.tokens import Tokens

FEWEST = 3
"""Rollouts of several turns that must show it. An invariant: healthy runs train every turn."""
GROWS = 10.0
"""Times that the gap of later turns exceeds that of the first, to be noted. Healthy: about 1."""
VISIBLE = 0.01
"""Mean gap, in nats, below which rounding explains it (bf16 has up to 0.025 in every turn)."""


class MultiStep(Hypothesis):
    id = "H07"
    name = "multi-step"
    headline = "Only the first turns of your rollouts are trained."
    explains = ("H02",)
    meaning = "What the policy does after its first turns is never trained."
    fix = "Build the loss mask over the whole rollout, from who wrote each token."
    mechanism = "Later turns of the model carry no loss; in the other arm every turn does."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Does every turn reach the loss?"""
        steps = some_steps(trace, MASK_STEPS)
        tokens = trace.tokens(steps)
        turns, lead, kept = _turns(tokens)
        several = turns > 1
        if not several.any():
            return self.not_applicable(
                "no recorded rollout has more than one turn of the model.",
                looked_at=int((turns > 0).sum()),
            )
        kept_several = several & kept
        if kept_several.sum() < FEWEST:
            return self.too_little(
                f"{kept_several.sum()} rollouts of several turns carry loss; {FEWEST} are needed"
            )
        last = int(lead[kept].max())
        cut = kept & (lead < turns)
        uniform = bool(np.all(lead[kept] == np.minimum(turns[kept], last)))
        if uniform and last >= 1 and cut.sum() >= FEWEST:
            return self.found(
                Level.FAULT,
                f"Only the first {last} of up to {turns[kept].max()} turns carry loss, in all of "
                f"{cut.sum()} rollouts that have more.",
                measured=float(cut.sum() / kept.sum()),
                expected="every turn of the model carries loss",
                evidence=[_example(trace, tokens, row, turns) for row in np.flatnonzero(cut)[:3]],
            )
        told = self._by_turn(trace)
        whole = int((kept & ~cut).sum())
        every = f"All turns of {whole} of {kept.sum()} rollouts{in_steps(trace, steps)} carry loss."
        if told or cut.any():
            lost = " Which turns do not differs between rollouts: see H02." if cut.any() else ""
            return self.found(Level.NOTE, f"{every}{lost} {told}".strip())
        return self.found(Level.OK, every, measured=1.0, expected="all", looked_at=whole)

    def _by_turn(self, trace: Trace) -> str:
        """The gap of the first step in later turns, where it stands out."""
        try:
            gaps = at_equal_weights(trace)
        except NotRecorded:
            return ""
        size = np.abs(gaps.gap)
        first, later = size[gaps.turn == 0], size[gaps.turn > 0]
        if not len(first) or not len(later) or later.mean() < VISIBLE:
            return ""
        if later.mean() < GROWS * max(first.mean(), 1e-6):
            return ""
        return (
            f"Sampler and trainer differ by {later.mean():.3f} nat in later turns and by "
            f"{first.mean():.1g} in the first: see H09, H10 and H11."
        )


def _turns(tokens: Tokens) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per rollout: turns of the model, turns from the first on that carry loss, and whether only
    those do (rollouts without any loss are left out of it)."""
    rows = len(tokens.rollout_rows)
    model = tokens.author == Author.MODEL
    turns = np.zeros(rows, dtype=np.int64)
    np.maximum.at(turns, tokens.row[model], tokens.turn[model] + 1)
    width = int(turns.max(initial=0)) + 1
    carries = np.zeros((rows, width), dtype=bool)
    trained = model & tokens.trained
    carries[tokens.row[trained], tokens.turn[trained]] = True
    lead = np.argmin(carries, axis=1)
    return turns, lead, carries.any(axis=1) & (carries.sum(axis=1) == lead)


def _example(trace: Trace, tokens: Tokens, row: int, turns: np.ndarray) -> Evidence:
    mine = (tokens.row == row) & (tokens.author == Author.MODEL) & ~tokens.trained
    at = tokens.rollout_rows[row]
    return Evidence.of(
        trace, at, f"{turns[row]} turns; without loss: {trace.decode(tokens.ids[mine][:24])!r}"
    )
