"""Measurements that take the optimizer step of the batch and look on from there."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flatline.live.held import at_rest, named, read, totals
from flatline.live.step_records import Accumulation, KlPull, SteppedDelivery
from flatline.live.trl.engine import Rollouts
from flatline.live.trl.measure.brief import MOVED_TURN, MOVED_TURNS
from flatline.live.trl.measure.passes import no_dropout
from flatline.live.trl.measure.replay import (
    NO_REFERENCE,
    engine_of,
    played_gap,
    rows_to_play,
    short_turns,
)
from flatline.live.trl.measure.scoring import Played, play
from flatline.live.trl.measure.step import Backward, backward, take_step

Gradients = Mapping[str, Tensor]

SMALL = 0.01
"""Share of a full step after which the pull of the KL is looked at. It grows with the distance only
while that is small: one token that a full step makes unlikely can own all of the KL's gradient."""
FURTHER = 10
"""How many times as far away it is looked at again. A pull grows as much; rounding does not."""


def stepped_delivery(
    trainer: Any,
    rollouts: Rollouts | None,
    some: Played,
    back: Backward,
    visible: float,
    gap_before: float,
) -> SteppedDelivery:
    """Step at the configured rate and play some prompts as the next step would. `visible` is what
    the step does to the batch's rollouts of the same prompts: others may move far more."""
    engine = engine_of(rollouts, trainer)
    at_rest(trainer.model)
    old = [read(weight).clone() for weight in trainer.model.parameters()]
    take_step(trainer, back, 1.0)
    trainer.state.global_step += 1
    trainer.beta = NO_REFERENCE
    no_dropout(trainer)  # `generate` has it on; delivery is a matter of weights
    with short_turns(engine, MOVED_TURN, MOVED_TURNS):
        following = play(trainer, rows_to_play(some))
    gap_new = played_gap(trainer, following)
    at_rest(trainer.model)
    with torch.no_grad():
        for weight, value in zip(trainer.model.parameters(), old, strict=True):
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


def accumulation(trainer: Any, few: Played) -> Accumulation | None:
    """The gradient of a few rollouts in passes of the configured size, and in twice as many of half
    the size; None where a pass cannot be halved."""
    rows = len(few.rows)
    size = math.gcd(rows, trainer.args.per_device_train_batch_size)
    if size % 2:
        return None
    no_dropout(trainer)  # its noise says nothing about how passes are added up
    whole = _gradient(trainer, few, size)
    halves = _gradient(trainer, few, size // 2)
    return Accumulation(
        passes=(rows // size, 2 * rows // size),
        norms=(norm(trainer, whole), norm(trainer, halves)),
        cosine=cosine(trainer, whole, halves),
    )


def gradient_twice(trainer: Any, played: Played, back: Backward) -> float:
    """Cosine of the gradient with another one of the same batch, in which chance falls otherwise;
    NaN without a gradient."""
    torch.manual_seed(1)  # every measurement begins with the same random numbers
    return cosine(trainer, back.gradients, backward(trainer, played).gradients)


def kl_pull(trainer: Any, few: Played, back: Backward) -> KlPull | None:
    """Both parts of the gradient a small step away from the start, and that of the KL once more
    further away; None where beta is 0. Before any step the policy is its reference, and the KL
    pulls nowhere."""
    beta = float(trainer.beta)
    if beta == 0:
        return None
    size = math.gcd(len(few.rows), trainer.args.per_device_train_batch_size)
    # Not the difference of two gradients with reward: in bf16 that is rounding for the most part.
    without = {**few.inputs, "advantages": torch.zeros_like(few.inputs["advantages"])}
    only_kl = Played(few.rows, without)
    weights = [weight for _, weight in named(trainer.model)]
    start = [read(weight).clone() for weight in weights]
    take_step(trainer, back, SMALL)
    near = _gradient(trainer, only_kl, size)
    trainer.beta = 0.0
    reward = _gradient(trainer, few, size)
    trainer.beta = beta
    at_rest(trainer.model)
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            part = read(weight)
            part.copy_(value + FURTHER * (part - value))
    return KlPull(
        beta=beta,
        scale=SMALL,
        reward=norm(trainer, reward),
        kl=norm(trainer, near),
        further=FURTHER,
        kl_further=norm(trainer, _gradient(trainer, only_kl, size)),
        cosine=cosine(trainer, reward, near),
    )


def _gradient(trainer: Any, played: Played, size: int) -> Gradients:
    """The gradient of one optimizer step on these rollouts, in passes of this size; not clipped."""
    args = trainer.args
    args.max_grad_norm = 0
    args.per_device_train_batch_size = size
    args.gradient_accumulation_steps = args.steps_per_generation = len(played.rows) // size
    return backward(trainer, played).gradients


def norm(trainer: Any, gradients: Gradients) -> float:
    """Of all weights together, whoever holds their parts."""
    return math.sqrt(_product(trainer, gradients, gradients))


def cosine(trainer: Any, a: Gradients, b: Gradients) -> float:
    """NaN where one of them is 0."""
    size = norm(trainer, a) * norm(trainer, b)
    return _product(trainer, a, b) / size if size else float("nan")


def _product(trainer: Any, a: Gradients, b: Gradients) -> float:
    weights = dict(trainer.model.named_parameters())
    both = [name for name in a if name in b]
    values = [float((read(a[name]).float() * read(b[name]).float()).sum()) for name in both]
    return sum(totals(values, [weights[name] for name in both]))
