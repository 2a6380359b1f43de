"""Measurements that take the optimizer step of the batch and look on from there."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from flatline.live.measure.brief import MOVED_TURN, MOVED_TURNS
from flatline.live.measure.passes import no_dropout
from flatline.live.measure.played import Played
from flatline.live.measure.replay import played_gap, rows_to_play, short_turns
from flatline.live.measure.step import Backward
from flatline.live.protocol import Trainer
from flatline.live.step_records import Accumulation, KlPull, SteppedDelivery

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
    old = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.take_step(back, 1.0)
    no_dropout(trainer)  # `generate` has it on; delivery is a matter of weights
    with short_turns(engine, MOVED_TURN, MOVED_TURNS):
        following = trainer.play(rows_to_play(some), trainer.steps_done + 1)
    gap_new = played_gap(trainer, following)
    with torch.no_grad():
        for weight, value in zip(trainer.model.parameters(), old, strict=True):
            weight.copy_(value)
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
        norms=(_norm(whole), _norm(halves)),
        cosine=_cosine(whole, halves),
    )


def gradient_twice(trainer: Trainer, played: Played, back: Backward) -> float:
    """Cosine of the gradient with another one of the same batch, in which chance falls otherwise;
    NaN without a gradient."""
    torch.manual_seed(1)  # every measurement begins with the same random numbers
    return _cosine(back.gradients, trainer.backward(played).gradients)


def kl_pull(trainer: Trainer, few: Played, back: Backward) -> KlPull | None:
    """Both parts of the gradient a small step away from the start, and that of the KL once more
    further away; None where beta is 0. Before any step the policy is its reference, and the KL
    pulls nowhere."""
    beta = trainer.beta
    if beta == 0:
        return None
    size = math.gcd(len(few.rows), trainer.size)
    # Not the difference of two gradients with reward: in bf16 that is rounding for the most part.
    without = {**few.inputs, "advantages": torch.zeros_like(few.inputs["advantages"])}
    only_kl = Played(few.rows, without)
    weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    start = [weight.detach().clone() for weight in weights]
    trainer.take_step(back, SMALL)
    near = trainer.backward(only_kl, size=size).gradients
    reward = trainer.backward(few, size=size, beta=0.0).gradients
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            weight.copy_(value + FURTHER * (weight - value))
    return KlPull(
        beta=beta,
        scale=SMALL,
        reward=_norm(reward),
        kl=_norm(near),
        further=FURTHER,
        kl_further=_norm(trainer.backward(only_kl, size=size).gradients),
        cosine=_cosine(reward, near),
    )


def _norm(gradients: Gradients) -> float:
    return math.sqrt(sum(float(one.float().square().sum()) for one in gradients.values()))


def _cosine(a: Gradients, b: Gradients) -> float:
    product = sum(float((a[name].float() * b[name].float()).sum()) for name in a if name in b)
    size = _norm(a) * _norm(b)
    return float(product / size) if size else float("nan")
