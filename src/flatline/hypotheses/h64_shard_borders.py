"""A row is scored in shards, and a shard does not see what comes before its own first token.

## What goes wrong
Context and sequence parallelism cut long rows into shards on different devices, which must exchange
keys and values. Where the attention in use is not the one that was patched to do so, or drops the
mask that says so, each shard is scored as if the row began there: after the first border nothing
of the question is known. Only long rows are cut, so that a short test shows nothing.

## Sign
None: where rows are cut is not recorded. What it makes of log-probs shows as H09, H54 or
H20.

## Probe
Some words of the longest completions are changed, one place at a time, each in a separate pass. In
a sound pass every later token in doubt (not nearly certain) moves, if only by the last bit. Two
changes at different places that both stop moving anything at the same token, with at least three
tokens in doubt after it that a still later change does move, show a border: a fault in float32,
suspected in 16 bits. A border inside the prompt is not seen: it looks like H04 or H09. Healthy in
the lab: all tokens move.

## Experiment
A run with the planted fault against the same without it, matched seeds; or one shard against
several (`cp_size`, `ulysses_sequence_parallel_size`).

## Fix
Use the attention that the framework patches for shards (often SDPA or flash attention alone, and no
mask), shift labels before the row is cut, and compare log-probs with one shard and with several.

## Not to be confused with
H04 context-truncation: the start is cut off whatever follows. H09 loss-mask-as-attention: tools and
prompts are hidden, and what the model wrote is seen. Attention by a sliding window forgets too, but
at another token for each change. The scale of the loss is H28's and H57's, its sum over processes
H60's.

## References
verl issue 2857 (Ulysses and the loss); Megatron-LM issues 673 and 906 (the scale with context
parallelism); accelerate pull request 4177 (hooks that drop masks); LlamaFactory issue 10474 (labels
at borders). In the lab four shards move trained tokens by 1.8 nat on average; shards that exchange
their keys by 5e-7 (`benchmarks/scale_faults.py`).
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import UNSURE
from flatline.trace.settings import is_half

if TYPE_CHECKING:
    from flatline.live.records import Reach
    from flatline.live.subject import Subject

FEWEST = 3
"""Tokens in doubt behind a border that do not move."""


class ShardBorders(Hypothesis):
    id = "H64"
    name = "shard-borders"
    headline = "Your trainer scores long rows in parts that do not see each other."
    explains = ("H01", "H03", "H06", "H10", "H11", "H15", "H20", "H21", "H22", "H24", "H29")
    meaning = "Tokens after the first border are scored without the question."
    fix = "Use the attention that exchanges keys between shards, and compare with one shard."
    mechanism = "A change does not reach beyond a border; in the other arm it does."

    def probe(self, subject: "Subject") -> Finding:
        """Does a change of early words reach every later token?"""
        found = [one for one in subject.reaches() if _tested(one)]
        if not found:
            return self.too_little(
                f"no completion has {FEWEST} tokens in doubt after its first third; longer ones "
                "would show it"
            )
        borders = [(one, at) for one in found for at in _borders(one)]
        if not borders:
            text = f"A change of early words reaches the end of {len(found)} completions."
            return self.found(
                Level.OK, text, measured=0.0, expected="every later token", looked_at=len(found)
            )
        one, at = borders[0]
        whole = one.prompt + len(one.logp_T)
        return self.found(
            Level.FAULT if is_half(subject.settings) is False else Level.SUSPECT,
            f"Changes at different places of a completion all stop moving log-probs at token "
            f"{one.prompt + at} of the {whole} of its row: what comes after is scored without what "
            "comes before.",
            measured=len(borders),
            expected="every later token",
        )


def _doubt(one: "Reach") -> np.ndarray:
    return one.logp_T < UNSURE


def _tested(one: "Reach") -> bool:
    """Whether there is something to move."""
    return bool(_doubt(one)[len(one.logp_T) // 3 :].sum() >= FEWEST)


def _borders(one: "Reach") -> list[int]:
    """Last tokens that changes at two places or more move, where a later change moves more."""
    moved, doubt = one.moved_CT & _doubt(one), _doubt(one)
    places = np.arange(moved.shape[1])
    last = [int(places[row].max(initial=-1)) for row in moved]
    stopped = [
        end
        for end, at in zip(last, one.places, strict=True)
        if end >= at and doubt[end + 1 :].sum() >= FEWEST
    ]
    beyond = moved.any(0)
    return sorted({end for end in stopped if stopped.count(end) > 1 and beyond[end + 1 :].any()})
