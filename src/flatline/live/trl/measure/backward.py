"""One optimizer step by TRL's own `training_step`."""

from typing import Any

import torch

from flatline.live.held import give_gradients, gradient_copies
from flatline.live.hooks import Patch
from flatline.live.inputs import Inputs
from flatline.live.measure.played import Played
from flatline.live.measure.step import Backward, census_of
from flatline.live.trl.grpo import GrpoTrainer

ROW = "checkup_row"
"""Extra tensor that tells the rollouts apart after TRL has shuffled them."""


def backward(trainer: GrpoTrainer, played: Played, passes: int = 0) -> Backward:
    """Accumulate the gradients of one optimizer step, as the training loop does; of so many passes
    where they are given."""
    _ready_optimizer(trainer)
    trainer.model.zero_grad()
    trainer._step, trainer._buffered_inputs = 0, None
    passes = passes or trainer.args.gradient_accumulation_steps
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
    clip = trainer.args.max_grad_norm
    census = census_of(trainer.model, trainer.optimizer, clip)
    if clip:
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), clip)
    return Backward(gradient_copies(trainer.model), census, loss, sorted(rows))


def backward_in_passes(trainer: GrpoTrainer, played: Played, size: int) -> Backward:
    """The same in passes of this size; not clipped."""
    return backward(trainer, played, _set_passes(trainer.args, len(played.rows), size))


def backward_short(trainer: GrpoTrainer, played: Played, size: int) -> Backward:
    """The same where a whole step would have twice as many passes."""
    passes = _set_passes(trainer.args, len(played.rows), size)
    trainer.args.gradient_accumulation_steps = 2 * passes
    return backward(trainer, played, passes)


def _set_passes(args: Any, rows: int, size: int) -> int:
    args.max_grad_norm = 0
    args.per_device_train_batch_size = size
    args.gradient_accumulation_steps = args.steps_per_generation = rows // size
    return rows // size


def take_step(trainer: GrpoTrainer, back: Backward, scale: float) -> float:
    """Take the step, with the callbacks that stand around it; the rate in force."""
    _ready_optimizer(trainer)
    give_gradients(trainer.model, back.gradients)
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


def _ready_optimizer(trainer: GrpoTrainer) -> None:
    """The trainer's own, or the one that it would create."""
    if trainer.optimizer is None:
        trainer.create_optimizer()
