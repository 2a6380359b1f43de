"""Leaves a trainer as it was, bit for bit.

Two kinds of things are put back. Containers and objects by what they held: every attribute of the
trainer, its state, its callbacks, its modules, the accelerator. Tensors by their values: weights,
gradients, buffers, the optimizer's means, the sampler's copy. What lies outside the trainer, such
as a counter inside a user's reward function, cannot be known and is left as it is.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.held import at_rest, elements, parts, read
from flatline.live.trl.engine import Rollouts
from flatline.live.trl.recorder.attach import Attachment
from flatline.live.trl.recorder.callback import StepWatch
from flatline.rollout.weights import WeightCopy

SAVE_ALL_UP_TO = 1_000_000_000
"""Weights of a model whose frozen weights are saved too. Nothing here changes those, but a sampler
that merges adapters in place may round them."""

SHARE_TO_SAVE = 0.25
"""Of the memory that a device has free."""

MANY = 10_000
"""Entries of a container that is data rather than state: what it holds is not looked into."""

Undo = Callable[[], None]


class Snapshot:
    """The trainer, and our engine's side of it, as they are now."""

    def __init__(self, trainer: Any, rollouts: Rollouts | None = None) -> None:
        self._trainer = trainer
        self._rest()
        objects, gradients = _objects(trainer, rollouts), _gradients(trainer)
        self._undo = [*objects, _values_of(_tensors(trainer, rollouts)), *gradients]
        self._undo.append(random_numbers())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What happens inside leaves no mark. Can be used again while nobody trains."""
        for attachment in _attachments(self._trainer):
            attachment._recording = None  # a run's trace holds what was trained, not what was tried
        try:
            yield
        finally:
            self._rest()
            for put_back in self._undo:
                put_back()

    def _rest(self) -> None:
        for model in _models(self._trainer):
            at_rest(model)


def _objects(trainer: Any, rollouts: Rollouts | None) -> Iterator[Undo]:
    """Every object of the trainer that a pass, a play or a step changes."""
    kept: list[Any] = [trainer, trainer.args, trainer.state, trainer.control]
    kept += [trainer.accelerator, trainer.accelerator.gradient_state, trainer.callback_handler]
    kept += [*trainer.callback_handler.callbacks, *_attachments(trainer)]
    kept += [held for held in (_optimizer(trainer), trainer.lr_scheduler) if held is not None]
    kept += [module for model in _models(trainer) for module in model.modules()]
    if rollouts is not None:
        kept += [rollouts, *(held for held in (rollouts.weights, rollouts.engine) if held)]
    for thing in kept:
        if hasattr(thing, "__dict__"):
            yield _keep(vars(thing), depth=4 if thing is trainer else 3)


def _keep(value: Any, depth: int) -> Undo:
    """Puts back what a container holds, and what the containers in it hold; never other objects."""
    if isinstance(value, dict):
        held, inner = dict(value), list(value.values())

        def put_back() -> None:
            value.clear()
            value.update(held)

    elif isinstance(value, list | deque):
        held, inner = list(value), list(value)  # type: ignore[assignment]

        def put_back() -> None:
            value.clear()
            value.extend(held)

    else:
        return lambda: None
    deeper = depth > 1 and len(inner) < MANY
    below = [_keep(one, depth - 1) for one in inner if deeper]

    def put_all_back() -> None:
        put_back()
        for undo in below:
            undo()

    return put_all_back


def _tensors(trainer: Any, rollouts: Rollouts | None) -> list[Tensor]:
    """Tensors that are written in place."""
    found: dict[int, Tensor] = {}
    for model in _models(trainer):
        size = sum(elements(weight) for weight in model.parameters())
        every = size <= SAVE_ALL_UP_TO and model is trainer.model
        weights = [p for p in model.parameters() if every or p.requires_grad]
        own = [part for weight in weights for part in parts(weight)]
        found |= {id(tensor): tensor for tensor in (*own, *model.buffers())}
    optimizer = _optimizer(trainer)
    if optimizer is not None:
        found |= {id(tensor): tensor for tensor in _state_tensors(optimizer)}
    if rollouts is not None and isinstance(rollouts.weights, WeightCopy):
        found |= {id(tensor): tensor for tensor in rollouts.weights._tensors.values()}
    return list(found.values())


def _values_of(tensors: Sequence[Tensor]) -> Undo:
    """Puts values back. Where there is room they are kept on the device: the way to the host and
    back is slow, and every measurement goes it."""
    own = [read(tensor) for tensor in tensors]
    near = bool(own) and _room_for(own)
    saved = [tensor.clone() if near else tensor.to("cpu", copy=True) for tensor in own]

    def put_back() -> None:
        if own:
            torch._foreach_copy_(own, saved)

    return put_back


def _room_for(tensors: Sequence[Tensor]) -> bool:
    """Whether a copy would leave most of the device's memory to the measurements."""
    if not tensors[0].is_cuda:
        return True
    needed = sum(tensor.nbytes for tensor in tensors)
    return needed < SHARE_TO_SAVE * torch.cuda.mem_get_info(tensors[0].device)[0]


def _gradients(trainer: Any) -> Iterator[Undo]:
    for weight in trainer.model.parameters():
        yield _gradient_of(weight)


def _gradient_of(weight: Tensor) -> Undo:
    gradient, trainable = weight.grad, weight.requires_grad
    value = None if gradient is None else _values_of([gradient])

    def put_back() -> None:
        weight.grad = gradient
        weight.requires_grad_(trainable)
        if value is not None:
            value()

    return put_back


def random_numbers() -> Undo:
    """Python's, numpy's and torch's random numbers as they are now; call it to have them back."""
    python, numbers, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(numbers)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return put_back


def _models(trainer: Any) -> list[Any]:
    held = [trainer.model, getattr(trainer, "ref_model", None)]
    return [model for model in held if model is not None]


def _attachments(trainer: Any) -> list[Attachment]:
    """Recorders that listen to the trainer."""
    watches = [c for c in trainer.callback_handler.callbacks if isinstance(c, StepWatch)]
    return [watch._attachment for watch in watches]


def _optimizer(trainer: Any) -> Any:
    """The torch optimizer, without the wrapper that accelerate puts around it; None before any."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def _state_tensors(optimizer: Any) -> Iterable[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
