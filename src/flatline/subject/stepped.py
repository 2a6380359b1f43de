"""Measurements that take the optimizer step of the batch and look on from there."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flatline.subject.brief import MOVED_TURN
from flatline.subject.replay import PROMPTS, engine_of, played_gap, short_turns
from flatline.subject.scoring import Played, fixed_logps, play, select
from flatline.subject.step import Backward, backward, take_step
from flatline.subject.step_records import Accumulation, KlPull, SteppedDelivery
from flatline.training.rollouts import Rollouts

Gradients = Mapping[str, Tensor]

SMALL = 0.01
"""Share of a full step after which the pull of the KL is looked at. It grows with the distance only
while that is small: one token that a full step makes unlikely can own all of the KL's gradient."""


def stepped_delivery(
    trainer: Any,
    rollouts: Rollouts | None,
    played: Played,
    before_BT: Tensor,
    back: Backward,
) -> SteppedDelivery:
    """Step at the configured rate and play some prompts as the next step would."""
    some = played.part(range(PROMPTS * trainer.num_generations))
    gap_before = played_gap(trainer, some)
    engine = engine_of(rollouts, trainer)
    old = [weight.detach().clone() for weight in trainer.model.parameters()]
    take_step(trainer, back, 1.0)
    after_BT = fixed_logps(trainer, select(played.inputs, range(len(some.rows))))
    change_BT = (after_BT - before_BT[: len(some.rows)]).abs().cpu()
    trainer.state.global_step += 1
    rows = [{k: v for k, v in row.items() if k != "rollout"} for row in some.rows]
    with short_turns(engine, MOVED_TURN):
        following = play(trainer, rows)
    gap_new = played_gap(trainer, following)
    with torch.no_grad():
        for weight, value in zip(trainer.model.parameters(), old, strict=True):
            weight.copy_(value)
    return SteppedDelivery(
        visible=float(change_BT[some.trained_BT].mean()) if some.trained_BT.any() else 0.0,
        gap_before=gap_before,
        gap_new=gap_new,
        gap_old=played_gap(trainer, following),
    )


def accumulation(trainer: Any, played: Played) -> Accumulation | None:
    """The gradient of the batch in as many passes as configured, and in twice as many of half the
    size; None where a pass cannot be halved."""
    args = trainer.args
    if args.per_device_train_batch_size % 2:
        return None
    args.max_grad_norm = 0  # gradients as they are, not as they are clipped
    passes = args.gradient_accumulation_steps
    whole = backward(trainer, played)
    args.per_device_train_batch_size //= 2
    args.gradient_accumulation_steps *= 2
    args.steps_per_generation *= 2
    halves = backward(trainer, played)
    return Accumulation(
        passes=(passes, 2 * passes),
        norms=(whole.census.total_norm, halves.census.total_norm),
        cosine=_cosine(whole.gradients, halves.gradients),
    )


def kl_pull(trainer: Any, played: Played, back: Backward) -> KlPull | None:
    """Both parts of the gradient a small step away from the start; None where beta is 0. Before
    any step the policy is its reference, and the KL pulls nowhere."""
    beta = float(trainer.beta)
    if beta == 0:
        return None
    take_step(trainer, back, SMALL)
    trainer.args.max_grad_norm = 0
    both = backward(trainer, played).gradients
    trainer.beta = 0.0
    reward = backward(trainer, played).gradients
    kl = {name: both[name] - reward[name] for name in both if name in reward}
    return KlPull(
        beta=beta, scale=SMALL, reward=_norm(reward), kl=_norm(kl), cosine=_cosine(reward, kl)
    )


def _norm(gradients: Gradients) -> float:
    return math.sqrt(sum(float(one.float().square().sum()) for one in gradients.values()))


def _cosine(a: Gradients, b: Gradients) -> float:
    product = sum(float((a[name].float() * b[name].float()).sum()) for name in a if name in b)
    size = _norm(a) * _norm(b)
    return float(product / size) if size else float("nan")
