"""Moves the trainable weights far enough to be seen, and puts them back."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from flatline.live.held import at_rest, copies, is_shared, named, read, totals
from flatline.live.measure.played import Played, fixed_logps
from flatline.live.protocol import HasModel, Trainer

ZERO_SCALE = 0.02
"""Stands for the size of a tensor that is all zero, such as LoRA's B before the first step."""
AMOUNTS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Sizes of the noise, relative to the weights, that are tried."""
VISIBLE, VIOLENT = 0.2, 2.0
"""Mean change of a log-prob, in nats, that is enough to be seen, and one after which little is left
of the policy: rounding then moves log-probs as much as weights do."""
HALVINGS = 4
"""Moves that are tried between the last one too small and one too large."""


@contextmanager
def moved(trainer: HasModel, amount: float) -> Iterator[None]:
    """Noise of a relative size on every trainable weight, on the parts that this process holds; the
    same noise every time."""
    weights = [weight for _, weight in named(trainer.model)]
    parts = [read(weight) for weight in weights]
    saved = copies(parts)
    # Drawn where the weights are: a host takes seconds for what a GPU draws at once. What all
    # processes hold moves alike in all, however many parts of others each of them has.
    places = {(part.device, is_shared(w)) for part, w in zip(parts, weights, strict=True)}
    noise = {place: torch.Generator(place[0]).manual_seed(0) for place in places}
    with torch.no_grad():
        for weight, part, size in zip(weights, parts, _sizes(weights, parts), strict=True):
            drawn = noise[part.device, is_shared(weight)]
            step = torch.randn(part.shape, generator=drawn, device=part.device) * size * amount
            part += step.to(part)
    try:
        yield
    finally:
        at_rest(trainer.model)
        with torch.no_grad():
            for part, value in zip(parts, saved, strict=True):
                part.copy_(value)


def _sizes(weights: Sequence[Tensor], parts: Sequence[Tensor]) -> list[float]:
    """Of the elements of each whole weight, on average."""
    squares = totals([float(part.float().square().sum()) for part in parts], weights)
    counts = totals([part.numel() for part in parts], weights)
    pairs = zip(squares, counts, strict=True)
    return [math.sqrt(square / max(count, 1)) or ZERO_SCALE for square, count in pairs]


class Move(NamedTuple):
    """How far to move the weights."""

    amount: float
    """Size of the noise, relative to the weights."""
    shift: float
    """What it does to the trainer's log-probs: mean absolute change, in nats."""


def visible_move(trainer: Trainer, played: Played, before_BT: Tensor, size: int) -> Move:
    """The smallest move that shifts the trainer's log-probs visibly: the larger, the further. They
    are scored `size` rollouts at a time."""

    def by(amount: float) -> Move:
        return moved_by(trainer, played, before_BT, size, amount)

    first, last, found = 0, len(AMOUNTS) - 1, {}
    while first < last:
        middle = (first + last) // 2
        found[middle] = by(AMOUNTS[middle])
        if found[middle].shift < VISIBLE:
            first = middle + 1
        else:
            last = middle
    move = found.get(last) or by(AMOUNTS[last])
    low = AMOUNTS[last - 1] if last else 0.0
    return _gentler(by, low, move)


def _gentler(by: Callable[[float], Move], low: float, high: Move) -> Move:
    """A move between one that is not seen and one that may be violent. Many layers that move
    together can go from one to the other in a single size."""
    for _ in range(HALVINGS):
        if high.shift <= VIOLENT:
            break
        middle = by((low + high.amount) / 2)
        if middle.shift < VISIBLE:
            low = middle.amount
        else:
            high = middle
    return high


def moved_by(trainer: Trainer, played: Played, before_BT: Tensor, size: int, amount: float) -> Move:
    """What one move does."""
    with moved(trainer, amount):
        after_BT = fixed_logps(trainer, played.inputs, size)
    return Move(amount, float((after_BT - before_BT).abs().cpu()[played.trained_BT].mean()))
