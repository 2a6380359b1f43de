"""Measurements that take the optimizer step of the batch and look on from there."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flatline.subject.brief import MOVED_TURN, MOVED_TURNS
from flatline.subject.replay import PROMPTS, engine_of, played_gap, short_turns
from flatline.subject.scoring import Played, fixed_logps, play, select
from flatline.subject.step import Backward, backward, take_step
from flatline.subject.step_records import Accumulation, KlPull, SteppedDelivery
from flatline.training.rollouts import Rollouts

Gradients = Mapping[str, Tensor]

SMALL = 0.01
"""Share of a full step after which the pull of the KL is looked at. It grows with the distance only
while that is small: one token that a full step makes unlikely can own all of the KL's gradient."""
FURTHER = 10
"""How many times as far away it is looked at again. A pull grows as much; rounding does not."""


def stepped_delivery(
    trainer: Any,
    rollouts: Rollouts | None,
    played: Played,
    before_BT: Tensor,
    back: Backward,
) -> SteppedDelivery:
    """Step at the configured rate and play some prompts as the next step would. What there is to be
    seen is told by rollouts of the same prompts: others may move far more."""
    some = played.part(range(PROMPTS * trainer.num_generations))
    gap_before = played_gap(trainer, some)
    engine = engine_of(rollouts, trainer)
    old = [weight.detach().clone() for weight in trainer.model.parameters()]
    take_step(trainer, back, 1.0)
    after_BT = fixed_logps(trainer, select(played.inputs, range(len(some.rows))))
    change_BT = (after_BT - before_BT[: len(some.rows)]).abs().cpu()
    trained_BT = played.trained_BT[: len(some.rows)]
    trainer.state.global_step += 1
    rows = [{k: v for k, v in row.items() if k != "rollout"} for row in some.rows]
    with short_turns(engine, MOVED_TURN, MOVED_TURNS):
        following = play(trainer, rows)
    gap_new = played_gap(trainer, following)
    with torch.no_grad():
        for weight, value in zip(trainer.model.parameters(), old, strict=True):
            weight.copy_(value)
    return SteppedDelivery(
        visible=float(change_BT[trained_BT].mean()) if trained_BT.any() else 0.0,
        gap_before=gap_before,
        gap_new=gap_new,
        gap_old=played_gap(trainer, following),
    )


def accumulation(trainer: Any, few: Played) -> Accumulation | None:
    """The gradient of a few rollouts in passes of the configured size, and in twice as many of half
    the size; None where a pass cannot be halved."""
    rows = len(few.rows)
    size = math.gcd(rows, trainer.args.per_device_train_batch_size)
    if size % 2:
        return None
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # its noise says nothing about how passes are added up
    whole = _gradient(trainer, few, size)
    halves = _gradient(trainer, few, size // 2)
    return Accumulation(
        passes=(rows // size, 2 * rows // size),
        norms=(_norm(whole), _norm(halves)),
        cosine=_cosine(whole, halves),
    )


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
    weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    start = [weight.detach().clone() for weight in weights]
    take_step(trainer, back, SMALL)
    near = _gradient(trainer, only_kl, size)
    trainer.beta = 0.0
    reward = _gradient(trainer, few, size)
    trainer.beta = beta
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            weight.copy_(value + FURTHER * (weight - value))
    return KlPull(
        beta=beta,
        scale=SMALL,
        reward=_norm(reward),
        kl=_norm(near),
        further=FURTHER,
        kl_further=_norm(_gradient(trainer, only_kl, size)),
        cosine=_cosine(reward, near),
    )


def _gradient(trainer: Any, played: Played, size: int) -> Gradients:
    """The gradient of one optimizer step on these rollouts, in passes of this size; not clipped."""
    args = trainer.args
    args.max_grad_norm = 0
    args.per_device_train_batch_size = size
    args.gradient_accumulation_steps = args.steps_per_generation = len(played.rows) // size
    return backward(trainer, played).gradients


def _norm(gradients: Gradients) -> float:
    return math.sqrt(sum(float(one.float().square().sum()) for one in gradients.values()))


def _cosine(a: Gradients, b: Gradients) -> float:
    product = sum(float((a[name].float() * b[name].float()).sum()) for name in a if name in b)
    size = _norm(a) * _norm(b)
    return float(product / size) if size else float("nan")
