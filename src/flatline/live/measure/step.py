"""One optimizer step of the trainer's own, looked at and undone.

The backward pass is run once; a step at another learning rate starts from the same gradients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from flatline.live.held import copies, elements, held, named, read, totals
from flatline.live.measure.passes import lora_untrained
from flatline.live.measure.played import Played, fixed_logps
from flatline.live.protocol import Trainer
from flatline.live.records import VISIBLE_STEP, Floats, GradientCensus, OneStep
from flatline.rollout.record import Author
from flatline.stats import mean_of_units

HIGHEST_RATE = 1e-2
"""A step of Adam changes every weight by about the rate, and weights are 0.02 to 0.1 in size. Above
it one step may still look harmless, and the next ones are not: an adapter of rank 1 on one layer
was told 0.35, and its held-out accuracy went from 0.42 to 0."""
FARTHEST = 10.0
"""Times a rate that the next one tried may be."""
TRIALS = 6
"""Rates that are tried beside the configured one."""
GROWN = 10.0
"""Times that a token may become as likely in a step, as far as its least KL is concerned. At ten
times the rate, one of 26 healthy setups had a KL of 14: a single token of its 3095, 40,000 times as
likely as before, made 97 % of that. See docs/hypotheses.md."""


@dataclass(slots=True)
class Backward:
    """What the backward passes of one optimizer step left."""

    gradients: Mapping[str, Tensor]
    """After clipping, by parameter name; missing ones are absent."""
    census: GradientCensus
    """The same before clipping, as numbers."""
    loss: float
    """Sum over the passes."""
    rows: list[int]
    """Rollouts that were trained on."""


class Stepped(NamedTuple):
    """An optimizer step, taken and undone."""

    found: OneStep
    after_BT: Tensor
    """The trainer's log-probs of the batch after it."""


def one_step(
    trainer: Trainer, played: Played, before_BT: Tensor, back: Backward, scale: float
) -> Stepped:
    """Step with the gradients and score the batch again."""
    weights = named(trainer.model)
    old = copies([held(weight) for _, weight in weights])
    rate = trainer.take_step(back, scale)
    after_BT = fixed_logps(trainer, played.inputs)
    shares, norms = _changes([weight for _, weight in weights], old)
    sizes = np.array([elements(weight) for _, weight in weights])
    model_BT = (played.author_BT == int(Author.MODEL)) & played.mask_BT
    change_BT = (after_BT - before_BT).cpu().double()
    sums_B = (change_BT * model_BT).sum(1)
    rows = [row for row in back.rows if bool(played.trained_B[row])]
    advantage, change = played.advantage_R[rows], sums_B[rows].numpy()
    kl, kl_at_least = kl_of(change_BT[rows], model_BT[rows])
    trained_BT = played.trained_BT[rows]
    found = OneStep(
        lr_scale=scale,
        learning_rate=rate,
        loss=back.loss,
        gradients=back.census,
        changed_share=float((shares * sizes).sum() / max(1, sizes.sum())),
        changed_share_of=shares,
        update_norms=norms,
        rollouts=np.array(rows, dtype=np.int64),
        advantage=advantage,
        change=change,
        tokens=model_BT[rows].sum(1).numpy(),
        correlation=_correlation(advantage, change),
        kl=kl,
        kl_at_least=kl_at_least,
        change_T=change_BT[rows][trained_BT].numpy(),
        advantage_T=played.advantage_BT[rows][trained_BT].numpy(),
        room_T=(1 - before_BT.cpu().double()[rows].exp())[trained_BT].numpy(),
    )
    return Stepped(found, after_BT)


def fitting(measure: Callable[[float], OneStep]) -> OneStep | None:
    """A step of visible size at a rate that was really tried; None where no plausible rate gives
    one. `measure` takes a multiple of the configured rate."""
    scale, found = 1.0, measure(1.0)
    for _ in range(TRIALS):
        if VISIBLE_STEP[0] <= found.kl <= VISIBLE_STEP[1]:
            return found
        factor = _next_factor(found.kl)
        if factor > 1:
            factor = min(factor, HIGHEST_RATE / found.learning_rate)
        if factor <= 1 and found.kl < VISIBLE_STEP[0]:
            return None
        scale *= _two_digits(found.learning_rate * factor) / found.learning_rate
        found = measure(scale)
    return found if VISIBLE_STEP[0] <= found.kl <= VISIBLE_STEP[1] else None


def _two_digits(rate: float) -> float:
    """What is advised is what was tried, to the last digit."""
    return float(f"{rate:.2g}")


def _next_factor(kl: float) -> float:
    """Where to try next: a KL grows about with the square of the rate, but not over decades."""
    if not np.isfinite(kl):
        return 1 / FARTHEST
    wanted = np.sqrt(VISIBLE_STEP[0] * VISIBLE_STEP[1])
    return float(np.clip(np.sqrt(wanted / max(kl, 1e-300)), 1 / FARTHEST, FARTHEST))


def census_of(model: nn.Module, optimizer: Any, max_grad_norm: float | None) -> GradientCensus:
    """The gradients of the trainable weights, as numbers."""
    weights = named(model)
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    grads = [p.grad for _, p in weights]
    squares = [0.0 if grad is None else float(read(grad).float().square().sum()) for grad in grads]
    norms = np.sqrt(totals(squares, [p for _, p in weights]))
    filled = [float(read(p).any()) for _, p in weights]
    return GradientCensus(
        names=tuple(name for name, _ in weights),
        kinds=tuple(_kind(name) for name, _ in weights),
        missing=np.array([grad is None for grad in grads], dtype=bool),
        norms=norms,
        in_optimizer=np.array([id(p) in stepped for _, p in weights], dtype=bool),
        total_norm=float(np.linalg.norm(norms)),
        max_grad_norm=float(max_grad_norm or 0.0),
        lora_untrained=lora_untrained(model),
        zero=np.array(totals(filled, [p for _, p in weights])) == 0,
        frozen=sum(not weight.requires_grad for weight in model.parameters()),
        sizes=np.array([elements(weight) for _, weight in weights], dtype=np.int64),
        epsilon=_epsilon(optimizer),
    )


def _epsilon(optimizer: Any) -> float | None:
    """What Adam adds to its denominator; None where nothing is, or two numbers (Adafactor's)."""
    held = optimizer.param_groups[0].get("eps")
    return float(held) if isinstance(held, int | float) else None


def _kind(name: str) -> str:
    for half in ("lora_A", "lora_B"):
        if half in name or half.replace("_", "_embedding_") in name:
            return half
    return "weight"


def _changes(weights: Sequence[Tensor], old: Sequence[Tensor]) -> tuple[Floats, Floats]:
    """Per tensor: share of elements that changed, and the norm of the change."""
    if not weights:
        return np.empty(0), np.empty(0)
    found = [_change(held(weight), kept) for weight, kept in zip(weights, old, strict=True)]
    counts, squares, sizes = (totals(each, weights) for each in zip(*found, strict=True))
    return np.array(counts) / sizes, np.sqrt(squares)


def _change(part: Tensor, old: Tensor) -> tuple[float, float, float]:
    """Elements that changed, the square of the change, and all elements: one tensor at a time."""
    change = part - old.to(part.device)
    return float((change != 0).sum()), float(change.float().square().sum()), float(part.numel())


def kl_of(change_BT: Tensor, model_BT: Tensor) -> tuple[float, float]:
    """Per token of the model, and what it certainly is at least. The mean may be that of one token
    which was hardly possible before the step; for the second, no token counts as having become more
    than `GROWN` times as likely, which makes the mean of a batch less but never that of a policy
    more. Its units are rollouts."""
    kl_BT, least_BT = (
        (d_BT.exp() - d_BT - 1).where(model_BT, 0.0)
        for d_BT in (change_BT, change_BT.clamp(max=math.log(GROWN)))
    )
    sizes_B = model_BT.sum(1)
    own_B = sizes_B > 0
    if not own_B.any():
        return math.nan, 0.0
    sums_B, sizes_B = least_BT.sum(1)[own_B], sizes_B[own_B]
    least = sums_B.sum() / sizes_B.sum()
    # A ratio of two sums over rollouts, made linear in each of them.
    of_each_B = least + (sums_B - least * sizes_B) / sizes_B.double().mean()
    return float(kl_BT.sum() / sizes_B.sum()), max(0.0, mean_of_units(of_each_B.tolist()).low)


def _correlation(a: Floats, b: Floats) -> float:
    varies = len(a) > 1 and np.ptp(a) > 0 and np.ptp(b) > 0
    return float(np.corrcoef(a, b)[0, 1]) if varies else float("nan")
