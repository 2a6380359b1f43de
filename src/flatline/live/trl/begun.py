"""A trainer whose training has begun: only then are weights split and gradients averaged.

`trainer.train()` wraps the model for several processes before it says that training begins. A
checkup that is asked for earlier goes that far, looks, and comes back.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion
from transformers import TrainerCallback

from flatline.errors import ConfigError
from flatline.live import ranks
from flatline.live.restore.numbers import random_numbers
from flatline.live.trl.grpo import GrpoTrainer

T = TypeVar("T")
FSDP_FROM = TorchVersion("2.13")
"""With torch 2.11 and accelerate 1.15 on one H200 the training broke after a checkup."""

_LOOKED_AT: set[int] = set()
"""Trainers that are looked at right now."""


def once(trainer: GrpoTrainer, look: Callable[[], T]) -> T:
    """What `look` returns. A step that is tried calls the user's callbacks, and one of these may be
    what asked for the checkup."""
    if id(trainer) in _LOOKED_AT:
        raise ConfigError(
            "A checkup of this trainer is already running.\n"
            "A checkup tries a step, and a step calls your callbacks: one of them asks for a "
            "checkup at every step.\nAsk for it in `on_train_begin`, or once."
        )
    _LOOKED_AT.add(id(trainer))
    try:
        return in_training(trainer, look)
    finally:
        _LOOKED_AT.discard(id(trainer))


def in_training(trainer: GrpoTrainer, look: Callable[[], T]) -> T:
    """What `look` returns, once training has begun. One process with whole weights needs no wait,
    and what is no trainer is left to whoever looks."""
    split = [getattr(trainer, f"is_{kind}_enabled", False) for kind in ("fsdp", "deepspeed")]
    if split[0] and torch.__version__ < FSDP_FROM:
        raise ConfigError(
            f"A checkup cannot look at FSDP with torch {torch.__version__}; it needs {FSDP_FROM}.\n"
            "Before that, passes of which no backward pass follows leave the model half put "
            "together, and the training that goes on afterwards stops with an error.\n"
            "Update torch, or record the run instead: `flatline.attach(trainer, run_dir)`."
        )
    if (ranks.count() == 1 and not any(split)) or _has_begun(trainer):
        return look()
    if split[1]:
        raise ConfigError(
            "DeepSpeed splits the weights when training begins, and cannot take that back.\n"
            "A checkup before it would not look at the trainer that trains.\n"
            "Ask for it there: a callback with `def on_train_begin(self, args, state, control, "
            "**_): print(flatline.checkup(trainer))`."
        )
    return _between_begin_and_first_step(trainer, look)


def _has_begun(trainer: GrpoTrainer) -> bool:
    """Whether the model is wrapped, or split."""
    if isinstance(getattr(trainer, "model_wrapped", None), DistributedDataParallel):
        return True
    weights = trainer.model.parameters() if hasattr(trainer, "model") else ()
    return any(hasattr(weight, "to_local") or hasattr(weight, "ds_numel") for weight in weights)


class _Looked(Exception):
    """Leaves `train()` before its first step."""


class _Look(TrainerCallback):  # type: ignore[misc]
    def __init__(self, look: Callable[[], Any]) -> None:
        self.look, self.found = look, None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.found = self.look()
        raise _Looked


def _between_begin_and_first_step(trainer: GrpoTrainer, look: Callable[[], T]) -> T:
    """No other callback hears of it: ours is the first and leaves. A model that was split stays
    so: training goes on from there."""
    own, held = dict(vars(trainer)), dict(vars(trainer.accelerator))
    lists = {name: list(one) for name, one in held.items() if isinstance(one, list)}
    callback, same_numbers = _Look(look), random_numbers()
    trainer.callback_handler.callbacks.insert(0, callback)
    try:
        trainer.train()
    except _Looked:
        pass
    finally:
        trainer.callback_handler.callbacks.remove(callback)
        vars(trainer).clear()
        vars(trainer).update(own)
        vars(trainer.accelerator).update(held)
        for name, before in lists.items():
            held[name][:] = before
        same_numbers()
    found: T = callback.found  # type: ignore[assignment]
    return found
