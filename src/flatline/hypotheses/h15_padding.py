"""What the trainer scores depends on the padding: on which rollouts share a batch.

## What goes wrong
Prompts are padded on the left so that all rows of a batch are equally long. Where the attention
mask or the positions do not know that, a row looks at padding, or its tokens are in the wrong
place, or logits are read one place off. The longest prompt of a batch is right, all others are not.

## Sign
The first step, where both sides hold the same weights, or, where none of its prompts is padded, the
first later one that has some; tokens in doubt only, since others agree whatever is wrong. Rollouts
of the longest prompt have no padding: if they agree with the sampler to rounding and the others
certainly differ by more than 0.01 nat, the padding is the difference: a fault. In 16 bits or TF32
it cannot be determined: padding alone changes the rounding. Nor can prompts of one length show it.
Healthy: 1e-6 with and without padding (0 of 26 runs, interval 0 to 13 %; an invariant).

## Probe
The rollouts with the most padding are scored again, each alone and without any. In float32 the
log-probs must agree to 1e-3 nat, in TF32 and fp16 to 0.06, in bf16 to 0.5 (the reasons are in
docs/specification.md); more is a fault. Healthy in the lab: 4e-6, and 0.06 in bf16.

## Experiment
A run with the planted fault against the same without it, matched seeds. No setting of a sound
trainer does this.

## Fix
Make the attention mask from the lengths and the positions from the mask; slice logits from the end
of the row, not from the length of the padded prompt.

## Not to be confused with
H23 dropout-in-scoring: two identical passes differ. H09 loss-mask-as-attention: real tokens are
hidden. H10 template-drift: the prompt itself is another, with or without padding.

## References
TRL issue 2708; ms-swift issue 7066. TRL pads prompts left and completions right, and slices from
the end. Rotary positions hide a plain shift: only what is looked at counts.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import ROUNDING, Gaps, at_equal_weights, recorded
from flatline.trace import Trace
from flatline.trace.settings import rounding

if TYPE_CHECKING:
    from flatline.live.subject import Subject

APART = 0.01
"""Nats by which padded rollouts differ from the sampler where others agree. Healthy: 1e-6."""
ROLLOUTS = 8
"""Rollouts that are scored alone. The most padded ones may be so behind their end only."""
FEWEST = 3
"""Prompts with padding that are needed."""
FEWEST_UNSURE = 5
"""Tokens in doubt of the longest prompt that must agree: others agree without it."""
TOGETHER = 1_000_000
"""Tokens that are read at once, at most, unless one step has more."""


class Padding(Hypothesis):
    id = "H15"
    name = "padding"
    headline = "Padding changes what your trainer computes."
    explains = ("H01", "H03", "H06", "H10", "H11", "H20", "H21", "H22", "H24", "H29")
    meaning = "The log-prob of a rollout depends on its neighbours in the batch."
    fix = "Pass the attention mask of the padding to every forward pass, positions made from it."
    mechanism = "Log-probs change with the padding; in the other arm they do not."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do rollouts with padding differ from the sampler, and those without agree?"""
        gaps = at_equal_weights(trace)
        longest, doubt = _longest(trace, gaps), gaps.unsure
        lengths = trace.rollouts["prompt_tokens"]
        if np.ptp(lengths[np.isfinite(lengths)]) == 0:
            return self.not_applicable(
                "all prompts have one length, so none is padded.", looked_at=len(lengths)
            )
        if gaps.mean(~longest & doubt).n < FEWEST:
            gaps = _first_padded(trace) or gaps
            longest, doubt = _longest(trace, gaps), gaps.unsure
        padded, whole = gaps.mean(~longest & doubt), np.abs(gaps.gap[longest & doubt])
        if padded.n < FEWEST:
            return self.too_little(
                f"{padded.n} of the prompts of a step are padded and in doubt; {FEWEST} of "
                "different length would show it"
            )
        if len(whole) < FEWEST_UNSURE:
            return self.too_little(f"the longest prompt has {len(whole)} tokens in doubt only")
        differ = whole.mean() < ROUNDING and padded.low > APART
        if differ and gaps.coarse:
            return self.too_little(
                "in this precision padding changes the rounding; `flatline checkup` can test it"
            )
        text = (
            f"At equal weights rollouts of padded prompts differ from the sampler by "
            f"{padded.value:.2g} nat per token, those of the longest prompt by {whole.mean():.2g}."
        )
        return self.found(
            Level.FAULT if differ else Level.OK,
            text,
            measured=padded,
            expected="the same",
            evidence=gaps.worst(trace, ~longest) if differ else (),
            severity=padded.value / APART,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Has a rollout the same log-probs alone as in the batch?"""
        alone = subject.alone_vs_batch(ROLLOUTS)
        known = np.isfinite(alone.difference) & (alone.padding > 0)
        if not known.any() and (alone.padding > 0).any():
            return self.too_little("no rollout with padding has a log-prob")
        if not known.any():
            return self.not_applicable(
                "no rollout of the batch is padded.", looked_at=len(alone.padding)
            )
        worst = float(alone.difference[known].max())
        limit = rounding(subject.settings)
        return self.found(
            Level.FAULT if worst > limit else Level.OK,
            f"Scored alone, {known.sum()} rollouts with up to {alone.padding[known].max()} tokens "
            f"of padding differ by {worst:.2g} nat at most from the same in the batch.",
            measured=worst,
            expected=f"below {limit:.2g}",
            severity=worst / limit,
            looked_at=int(known.sum()),
        )


def _first_padded(trace: Trace) -> Gaps | None:
    """A later step with enough padded prompts, whose longest prompt has the sampler's log-probs: so
    both sides hold the same weights there too."""
    for steps in _read_together(trace, _with_padding(trace)):
        gaps = recorded(trace, steps)
        if len(gaps) and (found := _shown_in(trace, gaps)):
            return recorded(trace, found[:1])
    return None


def _with_padding(trace: Trace) -> np.ndarray:
    """The later steps in which enough prompts are shorter than the longest."""
    groups, length = trace.groups(), trace.rollouts["prompt_tokens"]
    shorter = length < _longest_of_step(length, trace.rollouts["step"])
    padded = np.bincount(groups.index, shorter, groups.n) > 0
    steps, prompts = np.unique(groups.step[padded], return_counts=True)
    return np.intersect1d(steps[prompts >= FEWEST], trace.token_steps[1:])


def _read_together(trace: Trace, steps: np.ndarray) -> Iterator[list[int]]:
    """Steps in stretches, each read at once: what lies together in a file is read whole for any of
    it. The first are short, since most runs show there what is asked for."""
    step = trace.rollouts["step"]
    known = "completion_tokens" in trace.rollouts
    tokens = trace.rollouts["completion_tokens"] if known else np.full(len(step), TOGETHER)
    here = np.isin(step, steps)
    sizes = np.bincount(np.searchsorted(steps, step[here]), np.nan_to_num(tokens[here]))
    begin, most = 0, 1
    while begin < len(steps):
        whole = np.cumsum(sizes[begin : begin + most]) <= TOGETHER
        end = begin + max(int(whole.sum()), 1)
        yield steps[begin:end].tolist()
        begin, most = end, 2 * most


def _shown_in(trace: Trace, gaps: Gaps) -> list[int]:
    """The steps in which enough prompts are padded and the longest has the sampler's log-probs."""
    of_row = trace.rollouts["step"][gaps.row]
    steps, which = np.unique(of_row[gaps.rollout], return_inverse=True)
    longest, doubt = _longest(trace, gaps), gaps.unsure
    whole, padded = longest & doubt, ~longest & doubt
    tokens = np.bincount(which[whole], minlength=len(steps))
    off = np.bincount(which[whole], np.abs(gaps.gap[whole]), len(steps)) / np.maximum(tokens, 1)
    _, first = np.unique(gaps.prompt[padded], return_index=True)
    prompts = np.bincount(which[padded][first], minlength=len(steps))
    shown = (tokens >= FEWEST_UNSURE) & (off < ROUNDING) & (prompts >= FEWEST)
    return [int(step) for step in steps[shown]]


def _longest(trace: Trace, gaps: Gaps) -> np.ndarray:
    """Which tokens stand behind the longest prompt of their step."""
    if not len(gaps):
        raise NotRecorded("tokens.sampler")
    row = gaps.row[gaps.rollout]
    length, step = (trace.rollouts[name][row] for name in ("prompt_tokens", "step"))
    return np.asarray(length == _longest_of_step(length, step))


def _longest_of_step(length: np.ndarray, step: np.ndarray) -> np.ndarray:
    """For every entry, the length of the longest prompt of its step."""
    steps, which = np.unique(step, return_inverse=True)
    longest = np.zeros(len(steps))
    np.maximum.at(longest, which, length)
    return np.asarray(longest[which])
