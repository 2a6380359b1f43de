"""Where prompts end: what was cut to a number of characters ends in the middle of a word."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from flatline.hypotheses.logprobs import MASK_STEPS, some_steps
from flatline.trace import Trace
from flatline.trace.memo import once

FEWEST = 8
"""Different prompts of the greatest length."""
KINDS = 3
"""Numbers of words that these must have: prompts of a fixed form have one length and one number."""
_WORD = re.compile(r"[^\W\d_]+")
_LAST_WORD = re.compile(r"[^\W\d_]+\Z")


@dataclass(frozen=True, slots=True)
class CutPrompts:
    """Different prompts, the longest of which may have been cut."""

    full: np.ndarray
    """Whether each prompt has the greatest length."""
    longest: int
    """That length, in characters that not all prompts end with."""
    fragments: tuple[str, ...]
    """Ends of the longest that are the beginning of a word, and nowhere a word."""


@once
def prompt_texts(trace: Trace) -> list[str]:
    """The prompt of every group of some steps, as the model reads it."""
    tokens = trace.tokens(some_steps(trace, MASK_STEPS))
    length = np.bincount(tokens.prompt_row, minlength=len(tokens.rollout_rows))
    end = np.cumsum(length)
    group = trace.groups().index[tokens.rollout_rows]
    first = [row for row in np.unique(group, return_index=True)[1] if length[row]]
    return [trace.decode(tokens.prompt_ids[end[row] - length[row] : end[row]]) for row in first]


def cut_prompts(texts: Sequence[str]) -> CutPrompts | None:
    """None where prompts are few, or of a fixed form."""
    different = sorted(set(texts))
    ends = _common_end(different)
    asked = [text[: len(text) - ends] for text in different]
    lengths = np.array([len(text) for text in asked])
    full = lengths == lengths.max(initial=0)
    longest = [text for text, cut in zip(asked, full, strict=True) if cut]
    if len(longest) < FEWEST or len({len(text.split()) for text in longest}) < KINDS:
        return None
    words = {word for text in asked for word in _WORD.findall(_LAST_WORD.sub("", text))}
    last = [found.group() for text in longest if (found := _LAST_WORD.search(text))]
    fragments = [
        part for part in last if part not in words and any(word.startswith(part) for word in words)
    ]
    return CutPrompts(full, int(lengths.max()), tuple(fragments))


def _common_end(texts: Sequence[str]) -> int:
    """Characters that all of these end with: spelt backwards and sorted, the first and the last
    share the fewest."""
    backwards = sorted(text[::-1] for text in texts)
    pairs = zip(backwards[0], backwards[-1], strict=False) if backwards else ()
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
