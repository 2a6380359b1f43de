"""One optimizer step by the trainer's own `training_step`, looked at and undone.

The backward pass is run once; a step at another learning rate starts from the same gradients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatline.live.hooks import Patch
from flatline.live.records import VISIBLE_STEP, Floats, GradientCensus, OneStep
from flatline.live.trl.inputs import Inputs
from flatline.live.trl.measure.passes import lora_untrained
from flatline.live.trl.measure.scoring import Played, fixed_logps
from flatline.rollout.record import Author

ROW = "checkup_row"
"""Extra tensor that tells the rollouts apart after TRL has shuffled them."""
HIGHEST_RATE = 1e-2
"""A step of Adam changes every weight by about the rate, and weights are 0.02 to 0.1 in size. Above
it one step may still look harmless, and the next ones are not: an adapter of rank 1 on one layer
was told 0.35, and its held-out accuracy went from 0.42 to 0."""
FARTHEST = 10.0
"""Times a rate that the next one tried may be."""
TRIALS = 6
"""Rates that are tried beside the configured one."""


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


def backward(trainer: Any, played: Played) -> Backward:
    """Accumulate the gradients of one optimizer step, as the training loop does."""
    _ready_optimizer(trainer)
    trainer.model.zero_grad()
    trainer._step, trainer._buffered_inputs = 0, None
    passes = trainer.args.gradient_accumulation_steps
    trainer.current_gradient_accumulation_steps = passes
    # Not `_compute_loss`: a subclass may have a loss of its own and never call it.
    rows, loss = set(), 0.0

    def noting(compute_loss: Any, model: Any, inputs: Inputs, *args: Any, **kwargs: Any) -> Any:
        rows.update(inputs[ROW].tolist())
        return compute_loss(model, inputs, *args, **kwargs)

    numbered = {**played.inputs, ROW: torch.arange(len(played.rows))}
    with (
        Patch(trainer, "_generate_and_score_completions", lambda *_: dict(numbered)),
        Patch(trainer, "compute_loss", noting),
    ):
        for i in range(passes):
            trainer.accelerator.gradient_state._set_sync_gradients(i == passes - 1)
            loss += float(trainer.training_step(trainer.model_wrapped, played.rows, None))
    census = _census(trainer)
    if trainer.args.max_grad_norm:
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
    named = trainer.model.named_parameters()
    left = {name: weight.grad.clone() for name, weight in named if weight.grad is not None}
    return Backward(left, census, loss, sorted(rows))


def one_step(
    trainer: Any, played: Played, before_BT: Tensor, back: Backward, scale: float
) -> Stepped:
    """Step with the gradients and score the batch again."""
    old = {name: weight.detach().clone() for name, weight in _trainable(trainer)}
    rate = take_step(trainer, back, scale)
    after_BT = fixed_logps(trainer, played.inputs)
    shares, norms = _changes(trainer, old)
    sizes = np.array([weight.numel() for weight in old.values()])
    model_BT = (played.author_BT == int(Author.MODEL)) & played.mask_BT
    change_BT = (after_BT - before_BT).cpu().double()
    sums_B = (change_BT * model_BT).sum(1)
    rows = [row for row in back.rows if bool(played.trained_B[row])]
    advantage, change = played.advantage_R[rows], sums_B[rows].numpy()
    d_T = change_BT[rows][model_BT[rows]]
    trained_BT = played.trained_BT[rows]
    found = OneStep(
        lr_scale=scale,
        learning_rate=rate,
        loss=back.loss,
        gradients=back.census,
        changed_share=float((shares * sizes).sum() / sizes.sum()),
        changed_share_of=shares,
        update_norms=norms,
        rollouts=np.array(rows, dtype=np.int64),
        advantage=advantage,
        change=change,
        tokens=model_BT[rows].sum(1).numpy(),
        correlation=_correlation(advantage, change),
        kl=float((d_T.exp() - d_T - 1).mean()) if d_T.numel() else float("nan"),
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


def _ready_optimizer(trainer: Any) -> None:
    """The trainer's own, or the one that it would create."""
    if trainer.optimizer is None:
        trainer.create_optimizer()


def take_step(trainer: Any, back: Backward, scale: float) -> float:
    """Take the step, with the callbacks that stand around it; the rate in force."""
    _ready_optimizer(trainer)
    for name, weight in trainer.model.named_parameters():
        gradient = back.gradients.get(name)
        weight.grad = None if gradient is None else gradient.clone()
    handler = trainer.callback_handler
    handler.optimizer = trainer.optimizer
    rates = []
    for group in trainer.optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"]) * scale
        rates.append(float(group["lr"]))
    handler.on_pre_optimizer_step(trainer.args, trainer.state, trainer.control)
    trainer.optimizer.step()
    handler.on_optimizer_step(trainer.args, trainer.state, trainer.control)
    return max(rates, default=0.0)


def _trainable(trainer: Any) -> list[tuple[str, Tensor]]:
    return [(n, p) for n, p in trainer.model.named_parameters() if p.requires_grad]


def _census(trainer: Any) -> GradientCensus:
    weights = _trainable(trainer)
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    norms = [0.0 if p.grad is None else float(p.grad.float().norm()) for _, p in weights]
    return GradientCensus(
        names=tuple(name for name, _ in weights),
        kinds=tuple(_kind(name) for name, _ in weights),
        missing=np.array([p.grad is None for _, p in weights], dtype=bool),
        norms=np.array(norms),
        in_optimizer=np.array([id(p) in held for _, p in weights], dtype=bool),
        total_norm=float(np.linalg.norm(norms)),
        max_grad_norm=float(trainer.args.max_grad_norm or 0.0),
        lora_untrained=lora_untrained(trainer.model),
        sizes=np.array([weight.numel() for _, weight in weights], dtype=np.int64),
        epsilon=float(trainer.optimizer.param_groups[0].get("eps") or 0.0),
    )


def _kind(name: str) -> str:
    for half in ("lora_A", "lora_B"):
        if half in name or half.replace("_", "_embedding_") in name:
            return half
    return "weight"


def _changes(
    trainer: Any, old: Mapping[str, Tensor]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Per tensor: share of elements that changed, and the norm of the change."""
    new = dict(trainer.model.named_parameters())
    with torch.no_grad():
        shares = [float((new[n] != value).float().mean()) for n, value in old.items()]
        norms = [float((new[n] - value).float().norm()) for n, value in old.items()]
    return np.array(shares), np.array(norms)


def _correlation(a: Floats, b: Floats) -> float:
    varies = len(a) > 1 and np.ptp(a) > 0 and np.ptp(b) > 0
    return float(np.corrcoef(a, b)[0, 1]) if varies else float("nan")
