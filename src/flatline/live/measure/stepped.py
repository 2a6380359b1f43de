"""Measurements that take the optimizer step of the batch and look on from there."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from flatline.live.held import at_rest, copies, named, read, totals
from flatline.live.measure.passes import no_dropout
from flatline.live.measure.played import Played
from flatline.live.measure.replay import played_gap, rows_to_play, short_turns
from flatline.live.measure.short_plays import MOVED_TURN, MOVED_TURNS
from flatline.live.measure.step import Backward
from flatline.live.protocol import HasModel, Trainer
from flatline.live.step_records import Accumulation, KlPull, ShortStep, SteppedDelivery

Gradients = Mapping[str, Tensor]

SMALL = 0.01
"""Share of a full step after which the pull of the KL is looked at. It grows with the distance only
while that is small: one token that a full step makes unlikely can own all of the KL's gradient."""
FURTHER = 10
"""How many times as far away it is looked at again. A pull grows as much; rounding does not."""


def stepped_delivery(
    trainer: Trainer,
    some: Played,
    back: Backward,
    visible: float,
    gap_before: float,
) -> SteppedDelivery:
    """Step at the configured rate and play some prompts as the next step would. `visible` is what
    the step does to the batch's rollouts of the same prompts: others may move far more."""
    engine = trainer.engine()
    at_rest(trainer.model)
    weights = [weight for _, weight in named(trainer.model)]
    old = copies(weights)
    trainer.take_step(back, 1.0)
    no_dropout(trainer)  # `generate` has it on; delivery is a matter of weights
    with short_turns(engine, MOVED_TURN, MOVED_TURNS):
        following = trainer.play(rows_to_play(some), trainer.steps_done + 1)
    gap_new = played_gap(trainer, following)
    at_rest(trainer.model)
    with torch.no_grad():
        for weight, value in zip(weights, old, strict=True):
            read(weight).copy_(value)
    return SteppedDelivery(
        visible=visible,
        gap_before=gap_before,
        gap_new=gap_new,
        gap_old=played_gap(trainer, following),
    )


def mean_change(played: Played, rows: int, before_BT: Tensor, after_BT: Tensor) -> float:
    """Of the trained tokens of the first rollouts; 0 without any."""
    trained_BT = played.trained_BT[:rows]
    change_T = (after_BT - before_BT).abs().cpu()[:rows][trained_BT]
    return float(change_T.mean()) if change_T.numel() else 0.0


def accumulation(trainer: Trainer, few: Played) -> Accumulation | None:
    """The gradient of a few rollouts in passes of the configured size, and in twice as many of half
    the size; None where a pass cannot be halved."""
    rows = len(few.rows)
    size = math.gcd(rows, trainer.size)
    if size % 2:
        return None
    no_dropout(trainer)  # its noise says nothing about how passes are added up
    whole = trainer.backward(few, size=size).gradients
    halves = trainer.backward(few, size=size // 2).gradients
    return Accumulation(
        passes=(rows // size, 2 * rows // size),
        norms=(norm(trainer, whole), norm(trainer, halves)),
        cosine=cosine(trainer, whole, halves),
        short=_short(trainer, few, size, norm(trainer, whole)),
    )


def _short(trainer: Trainer, few: Played, size: int, whole: float) -> ShortStep | None:
    found = trainer.short_step
    if found is None or not whole:
        return found
    lacking = trainer.backward_short(few, size=size).gradients
    return replace(found, ratio=norm(trainer, lacking) / whole)


def gradient_twice(trainer: Trainer, played: Played, back: Backward) -> float:
    """Cosine of the gradient with another one of the same batch, in which chance falls otherwise;
    NaN without a gradient."""
    torch.manual_seed(1)  # every measurement begins with the same random numbers
    return cosine(trainer, back.gradients, trainer.backward(played).gradients)


def kl_pull(trainer: Trainer, few: Played, back: Backward) -> KlPull:
    """Both parts of the gradient a small step away from the start, and that of the KL once more
    further away. Before any step the policy is its reference, and the KL
    pulls nowhere."""
    size = math.gcd(len(few.rows), trainer.size)
    # Not the difference of two gradients with reward: in bf16 that is rounding for the most part.
    without = {**few.inputs, "advantages": torch.zeros_like(few.inputs["advantages"])}
    only_kl = Played(few.rows, without)
    weights = [weight for _, weight in named(trainer.model)]
    start = copies(weights)
    trainer.take_step(back, SMALL)
    near = trainer.backward(only_kl, size=size).gradients
    reward = trainer.backward(few, size=size, beta=0.0).gradients
    at_rest(trainer.model)
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            part = read(weight)
            near_value = value.to(part.device)
            part.copy_(near_value + FURTHER * (part - near_value))
    return KlPull(
        beta=trainer.beta,
        scale=SMALL,
        reward=norm(trainer, reward),
        kl=norm(trainer, near),
        further=FURTHER,
        kl_further=norm(trainer, trainer.backward(only_kl, size=size).gradients),
        cosine=cosine(trainer, reward, near),
    )


def norm(trainer: HasModel, gradients: Gradients) -> float:
    """Of all weights together, whoever holds their parts."""
    return math.sqrt(_product(trainer, gradients, gradients))


def cosine(trainer: HasModel, a: Gradients, b: Gradients) -> float:
    """NaN where one of them is 0."""
    size = norm(trainer, a) * norm(trainer, b)
    return _product(trainer, a, b) / size if size else float("nan")


def _product(trainer: HasModel, a: Gradients, b: Gradients) -> float:
    weights = dict(trainer.model.named_parameters())
    both = [name for name in a if name in b]
    values = [_inner(a[name], b[name]) for name in both]
    return sum(totals(values, [weights[name] for name in both]))


def _inner(a: Tensor, b: Tensor) -> float:
    return float((a.float() * b.to(a.device).float()).sum())
