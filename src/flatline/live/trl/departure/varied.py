"""What a batch happens not to hold, put into it.

A checkup sees one batch. Prompts of one length have no padding, where every completion ends none is
cut, and advantages are as large as a few rewards make them: what goes wrong with others shows only
in a later batch. Every stage is judged on what it was given, so it may be given anything.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flatline.live.measure.played import Played
from flatline.spec import Asked
from flatline.spec.completions import was_cut

SHORTER = 3
"""Tokens by which a prompt is made shorter than the others."""
SIZES = (0.35, -0.9, 1.0, -0.4, 0.6, -1.0, 0.15, -0.65)
"""Advantages of either sign, in units of the largest that a group can have."""


def varied_rows(asked: Asked, some: Played, stops: frozenset[int]) -> Played:
    """The same rows with one prompt that is shorter and one completion that is cut, where all are
    alike. What is not given as lists of ids is left as it is."""
    result = None if some.generated is None else some.generated.result
    if not isinstance(result, tuple) or not all(map(_lists, result[:2])):
        return some
    prompts, completions = (list(part) for part in result[:2])
    lengths = list(map(len, prompts))
    if len(set(lengths)) == 1 and lengths[0] > 2 * SHORTER:
        prompts[0] = prompts[0][SHORTER:]
    last = completions[-1]
    alike = len(set(map(len, completions))) == 1
    uncut = asked.mask_cut and not any(was_cut(one, stops) for one in completions)
    rest = list(result[2:])
    if (alike or uncut) and len(last) > 1:
        rest = [_cut(part, len(last)) for part in rest]
        completions[-1] = last[:-1]
    assert some.generated is not None
    changed = (prompts, completions, *rest)
    return replace(some, generated=some.generated._replace(result=changed))


def _lists(part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(one, list) for one in part)


def _cut(part: Any, length: int) -> Any:
    """What was given for each token of the last completion, without its last."""
    last = part[-1] if isinstance(part, list) and part else None
    numbers = isinstance(last, list) and all(isinstance(one, int | float) for one in last)
    if not numbers or last is None or len(last) != length:
        return part
    return [*part[:-1], last[:-1]]


def varied_advantages(asked: Asked, own_B: Tensor, whole_B: Sequence[float]) -> Tensor:
    """Of the size that a group can have, of either sign and no two of one pass alike."""
    largest = (asked.group - 1) / math.sqrt(asked.group)
    if asked.scale == "none":  # as large as rewards differ
        largest = max(map(abs, whole_B), default=0.0) or 1.0
    sizes = torch.tensor(SIZES).repeat(-(-len(own_B) // len(SIZES)))[: len(own_B)]
    # Rows that share their place in the pattern differ a little.
    fade = 1 - 0.05 * torch.arange(len(own_B)).div(len(SIZES), rounding_mode="floor").clamp(max=10)
    return (largest * sizes * fade).to(own_B)
