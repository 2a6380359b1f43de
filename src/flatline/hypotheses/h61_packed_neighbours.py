"""Rollouts that share a row see each other: a token attends to its neighbours' prompts and answers.

## What goes wrong
Packing puts several rollouts into one row without padding. If positions do not restart and no
mask separates them, the second rollout is scored as if it continued the first. Its
log-probs then belong to another question, ratios and KL with them; only the first of each row is
right. The loss stays finite and the speed is that of a sound run.

## Sign
The first step, where both sides hold the same weights, in float32. Rollouts of one prompt that
begin with the same tokens must have the same log-probs there. A fault if they differ by more than
0.01 nat, and if in certainly more than half of such prompts one of them is the sampler's to
rounding (the first of a row). Not testable in 16 bits, or if prompts are hidden from the trainer
(H09). Healthy: no prompt differs.

## Probe
Every second rollout of some passes is scored, and scored again with the completion before it
reversed: same lengths, same shapes, so that nothing rounds differently. A log-prob that changes by
more than the precision rounds is a fault. Passes of one rollout cannot show it. Healthy in the lab:
0.

## Experiment
A run with the planted fault against the same without it, matched seeds.

## Fix
Reset `position_ids` at every border and hand the borders to the attention: no 2D mask with
transformers' SDPA, `cu_seqlens` with flash attention, one block a rollout elsewhere. Test it with
two rollouts of which one is changed.

## Not to be confused with
H15 padding: the number of padding tokens matters, not what the neighbours say. H23
dropout-in-scoring: two identical passes differ. H62 expert-routing: experts of limited capacity
drop tokens of a full batch, so that neighbours matter without any attention between them.

## References
open-instruct issue 669 (packed without borders, to keep it simple); unsloth-zoo pull request 840
(backends that ignore the lengths leak); TRL issue 784. In the lab four rollouts a row move trained
tokens by 0.54 nat on average, and packed with borders by 5e-7 (`benchmarks/scale_faults.py`).
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import (
    ROUNDING,
    at_equal_weights,
    beginnings,
    mean_over,
    of_one_set_of_weights,
)
from flatline.stats import Estimate
from flatline.trace import Trace
from flatline.trace.settings import is_half, rounding

if TYPE_CHECKING:
    from flatline.live.subject import Subject

APART = 0.01
"""Nats by which equal beginnings differ. Healthy: 2e-4 at most."""
HALF = 0.5
"""Share of the prompts that differ in which one rollout is as sampled. Dropout: none."""
FEWEST = 3
"""Prompts whose rollouts begin alike."""


class PackedNeighbours(Hypothesis):
    id = "H61"
    name = "packed-neighbours"
    headline = "Rollouts packed into one row see each other."
    explains = ("H01", "H03", "H06", "H10", "H11", "H15", "H20", "H21", "H22", "H23", "H24", "H29")
    meaning = "A rollout is scored as if it went on from another question and its answer."
    fix = "Restart positions at every border of a packed row, and mask across borders."
    mechanism = "A rollout's log-probs change with its neighbours; in the other arm they do not."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do equal beginnings differ, and is one of each as it was sampled?"""
        at_equal_weights(trace)  # says what is missing
        if not trace.tokens([int(trace.token_steps[0])]).prompt_attended.all():
            return self.too_little("parts of prompts are hidden from the trainer; see H09")
        differing, as_sampled = _differing(trace)
        if differing.n < FEWEST:
            return self.too_little(
                f"{differing.n} prompts of the first step have rollouts that begin with the same "
                f"tokens; {FEWEST - differing.n} more are needed"
            )
        text = (
            f"Before any update rollouts of a prompt that begin with the same tokens differ there "
            f"by {differing.value:.2g} [{differing.low:.2g}, {differing.high:.2g}] nat in the "
            "trainer's log-probs"
        )
        apart = differing.low > APART
        if apart and is_half(trace.settings):
            return self.too_little(f"{text}, which this precision may round; a checkup can tell")
        packed = apart and as_sampled.low > HALF
        also = f"; in {as_sampled.value:.0%} of them one rollout is as it was sampled"
        return self.found(
            Level.FAULT if packed else Level.OK,
            text + (also if apart else "") + ".",
            measured=differing,
            expected="0",
            severity=differing.value / APART,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Do a rollout's log-probs change with what its neighbours say?"""
        found = subject.beside_others()
        if not found.rollouts:
            return self.too_little("every pass has one rollout; a pass of two would show it")
        limit = rounding(subject.settings)
        return self.found(
            Level.FAULT if found.change > limit else Level.OK,
            f"With other words of the same number in the rollouts next to them, {found.rollouts} "
            f"rollouts change by {found.change:.2g} nat at most.",
            measured=found.change,
            expected="0",
            looked_at=found.rollouts,
            severity=found.change / limit,
        )


def _differing(trace: Trace) -> tuple[Estimate, Estimate]:
    """By prompt: how far equal beginnings are apart, and, of those that are, in how many one is the
    sampler's to rounding."""
    first = [int(trace.token_steps[0])]
    columns = (of_one_set_of_weights(trace), "sampler")
    sides = [beginnings(trace, first, column) for column in columns]
    both = {place: np.array([side[place] for side in sides]) for place in sides[0]}
    known = {place: pair[:, np.isfinite(pair).all(0)] for place, pair in both.items()}
    found = {place: pair for place, pair in known.items() if pair.shape[1] > 1}
    spread = np.array([np.ptp(pair[0]) for pair in found.values()])
    nearest = np.array([np.abs(pair[0] - pair[1]).min() for pair in found.values()])
    prompts, apart = np.array([prompt for _, prompt, _ in found]), spread > APART
    as_sampled = (nearest[apart] < ROUNDING).astype(float)
    return mean_over(spread, prompts), mean_over(as_sampled, prompts[apart])
