"""Does a step of the loop also take the gradients of the step before?

A loop sets them to zero in front of its backward passes or behind its step. One that does neither
adds up all gradients there have ever been. Two steps are taken from the same weights and random
numbers, the second with the gradients that the first has left: they must do the same.
"""

import torch
from torch import Tensor

from flatline.live.loop.loop import Loop
from flatline.live.restore.snapshot import Snapshot
from flatline.live.stage_found import StageFound, departs

OPENING = "A step also takes the gradients of the step before"


def judge_leftovers(loop: Loop, snapshot: Snapshot) -> StageFound | None:
    """None where gradients are set to zero, or where two equal steps do not do the same anyway."""
    nothing: list[Tensor | None] = [None for _ in _trained(loop)]
    plain, left = _stepped(loop, snapshot, nothing)
    if not any(one is not None and bool(one.any()) for one in left):
        return None
    if not _same(_stepped(loop, snapshot, nothing)[0], plain):
        return None
    after = _stepped(loop, snapshot, left)[0]
    if _same(after, plain):
        return None
    apart = max(float((a - b).abs().max()) for a, b in zip(after, plain, strict=True))
    return departs(
        "gradient",
        f"{OPENING}: from the same weights and random numbers it ends up to {apart:.2g} elsewhere "
        "where these are still there.",
        fix="Call `optimizer.zero_grad()` before the backward passes of every step.",
    )


def _stepped(
    loop: Loop, snapshot: Snapshot, gradients: list[Tensor | None]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The weights that one step of the loop ends with, and the gradients that it leaves."""
    with snapshot.kept():
        for weight, gradient in zip(_trained(loop), gradients, strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        loop.step()
        weights = _trained(loop)
        left = [None if one.grad is None else one.grad.detach().clone() for one in weights]
        return [one.detach().clone() for one in weights], left


def _trained(loop: Loop) -> list[Tensor]:
    return [one for one in loop.model.parameters() if one.requires_grad]


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
