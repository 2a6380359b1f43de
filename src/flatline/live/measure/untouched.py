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
from torch import Tensor, nn

from flatline.live.held import at_rest, copies, elements, parts, read

SAVE_ALL_UP_TO = 1_000_000_000
"""Weights of a model whose frozen weights are saved too. Nothing here changes those, but a sampler
that merges adapters in place may round them."""

MANY = 10_000
"""Entries of a container that is data rather than state: what it holds is not looked into."""

Undo = Callable[[], None]


class Snapshot:
    """A training as it is now."""

    def __init__(
        self,
        *,
        models: Sequence[nn.Module],
        optimizer: Any,
        objects: Sequence[Any],
        tensors: Sequence[Tensor] = (),
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """The first of the models is the one that is trained; `objects` are what passes, plays and
        steps change besides, the trainer first. `pause` is called before anything is tried."""
        self._pause, self._models = pause, models
        self._rest()
        modules = [module for model in models for module in model.modules()]
        held = [optimizer] if optimizer is not None else []
        kept = [one for one in (*objects, *held, *modules) if hasattr(one, "__dict__")]
        self._undo = [_keep(vars(one), depth=4 if one is objects[0] else 3) for one in kept]
        own = [*_weights(models), *_state_tensors(held), *tensors]
        found = {id(one): one for one in own}
        self._undo.append(_values_of(list(found.values())))
        self._undo += [_gradient_of(weight) for weight in models[0].parameters()]
        self._undo.append(random_numbers())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What happens inside leaves no mark. Can be used again while nobody trains."""
        self._pause()
        try:
            yield
        finally:
            self._rest()
            for put_back in self._undo:
                put_back()

    def _rest(self) -> None:
        for model in self._models:
            at_rest(model)


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


def _weights(models: Sequence[nn.Module]) -> Iterator[Tensor]:
    """Tensors of the models that are written in place."""
    for model in models:
        size = sum(elements(weight) for weight in model.parameters())
        every = size <= SAVE_ALL_UP_TO and model is models[0]
        for weight in model.parameters():
            yield from parts(weight) if every or weight.requires_grad else ()
        yield from model.buffers()


def _values_of(tensors: Sequence[Tensor]) -> Undo:
    """Puts values back."""
    own = [read(tensor) for tensor in tensors]
    saved = copies(own)

    def put_back() -> None:
        if own:
            torch._foreach_copy_(own, saved)

    return put_back


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


def _state_tensors(optimizers: Iterable[Any]) -> Iterator[Tensor]:
    states = (state for optimizer in optimizers for state in optimizer.state.values())
    return (value for state in states for value in state.values() if isinstance(value, Tensor))
