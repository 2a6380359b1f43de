"""Remedies that are an argument of the script's with another value."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from flatline.remedies.base import Remedy, Tally, Undo
from flatline.remedies.stock import own_method


def with_setting(name: str, value: Any, what: str, **more: Any) -> Remedy:
    """A remedy that sets one argument, wherever the trainer keeps it."""

    def apply(trainer: Any, tally: Tally) -> list[Undo]:
        return _set(trainer, {name: value}, tally)

    shown = f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
    return Remedy(name=shown.replace('"', ""), what=what, apply=apply, setting=shown, **more)


def doubled(name: str, what: str) -> Remedy:
    """A remedy that doubles a limit."""

    def apply(trainer: Any, tally: Tally) -> list[Undo]:
        limit = getattr(trainer.args, name, None)
        if not limit:
            return []
        undos = _set(trainer, {name: 2 * limit}, tally)
        config = getattr(trainer, "generation_config", None)
        if name == "max_completion_length" and config is not None:
            undos += _set_on(config, {"max_new_tokens": 2 * limit})
        return undos

    return Remedy(name=f"{name} doubled", what=what, apply=apply, setting=f"{name}=2 * {name}")


def shuffled(trainer: Any, tally: Tally) -> list[Undo]:
    """Rows in TRL's own order, shuffled."""
    undos = own_method(trainer, "_get_train_sampler", tally)
    return undos + _set(trainer, {"shuffle_dataset": True}, tally)


def groups_of_trl(trainer: Any, tally: Tally) -> list[Undo]:
    """TRL's own sampler deals out rows."""
    return [
        undo
        for name in ("_get_train_sampler", "get_train_dataloader", "_prepare_inputs")
        for undo in own_method(trainer, name, tally)
    ]


def no_dropout(trainer: Any, tally: Tally) -> list[Undo]:
    """No layer drops anything."""
    undos = []
    for layer in trainer.model.modules():
        if isinstance(layer, nn.Dropout):
            tally.count(layer.p > 0)
            undos += _set_on(layer, {"p": 0.0})
    return undos


def float32_weights(trainer: Any, tally: Tally) -> list[Undo]:
    """What is trained is kept in float32."""
    held = [one for one in trainer.model.parameters() if one.requires_grad]
    before = [one.dtype for one in held]
    for one in held:
        tally.count(one.dtype != torch.float32)
        one.data = one.data.float()

    def undo() -> None:
        for one, kind in zip(held, before, strict=True):
            one.data = one.data.to(kind)

    return [undo]


def _set(trainer: Any, values: dict[str, Any], tally: Tally) -> list[Undo]:
    """On the arguments, and on the trainer where that keeps a copy."""
    tally.count(any(getattr(trainer.args, name, None) != v for name, v in values.items()))
    copies = {name: value for name, value in values.items() if name in vars(trainer)}
    return [*_set_on(trainer.args, values), *_set_on(trainer, copies)]


def _set_on(owner: Any, values: dict[str, Any]) -> list[Undo]:
    before = {name: getattr(owner, name, None) for name in values}

    def put(those: dict[str, Any]) -> Callable[[], None]:
        def do() -> None:
            for name, value in those.items():
                setattr(owner, name, value)

        return do

    put(values)()
    return [put(before)]
