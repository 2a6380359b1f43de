"""The step: gradient and weights are those of loss and optimizer, and nobody else's."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flatline.live.hooks import Patch
from flatline.live.where.package import library_of
from flatline.remedies.base import Tally, Undo
from flatline.remedies.stock import own_method

AFTER_A_STEP = ("on_optimizer_step", "on_step_end", "on_step_begin")
"""Callbacks that may see weights between one step and the next."""
OURS = ("transformers", "trl", "accelerate", "flatline")
"""Whose callbacks change nothing that is trained."""


def gradient_of_the_loss(trainer: Any, tally: Tally) -> list[Undo]:
    """What comes between the loss and the optimizer leaves gradients as they are."""
    undos = own_method(trainer, "training_step", tally)
    return undos + _kept(trainer, ["on_pre_optimizer_step"], _gradients, tally)


def step_of_the_optimizer(trainer: Any, tally: Tally) -> list[Undo]:
    """The optimizer and the schedule asked for, and weights that stay as the step left them."""
    undos = [
        undo
        for name in ("create_optimizer", "create_scheduler")
        for undo in own_method(trainer, name, tally)
    ]
    return undos + _kept(trainer, AFTER_A_STEP, _weights, tally)


def _kept(
    trainer: Any, names: Sequence[str], read: Callable[[Any], list[Tensor]], tally: Tally
) -> list[Undo]:
    """Callbacks of the script's leave no mark on what `read` returns."""

    @torch.no_grad()
    def around(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = [one.detach().clone() for one in read(trainer)]
        result = call(*args, **kwargs)
        off = False
        for now, was in zip(read(trainer), before, strict=True):
            if not torch.equal(now, was):
                now.copy_(was)
                off = True
        tally.count(off)
        return result

    return [
        Patch(callback, name, around).undo
        for callback in trainer.callback_handler.callbacks
        for name in names
        if library_of(type(callback).__module__) not in OURS
    ]


def _weights(trainer: Any) -> list[Tensor]:
    return [one for one in trainer.model.parameters() if one.requires_grad]


def _gradients(trainer: Any) -> list[Tensor]:
    return [one.grad for one in trainer.model.parameters() if one.grad is not None]
