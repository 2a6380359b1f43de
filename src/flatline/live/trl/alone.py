"""A trainer of several processes, looked at as if it were the only one.

Every process plays the whole batch of a step, in as many more passes as there are processes: the
same prompts and the same random numbers, so that each measures what the others measure, and all of
them meet wherever weights that they share are put together. A reward function is asked by process 0
alone. What only exists between processes is looked at before (`flatline.live.trl.measure.between`).
"""

import functools
import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from flatline.errors import Lacking
from flatline.live import ranks
from flatline.live.held import steps_in_backward
from flatline.live.hooks import Patch
from flatline.live.protocol import Capability
from flatline.live.restore.numbers import random_numbers
from flatline.live.trl.grpo import GrpoTrainer

Changes = Mapping[str, Any]

HIDDEN = "DeepSpeed steps inside its last backward pass"
WITHOUT = (
    "Run the checkup once without DeepSpeed, on the same model and data: on one process, or with "
    "FSDP2"
)


@contextmanager
def alone(trainer: GrpoTrainer) -> Iterator[None]:
    """Inside, the trainer is one process; a trainer that is one anyway is not changed."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import operations

    if ranks.count() == 1 or PartialState._shared_state["num_processes"] == 1:
        yield
        return
    one: Changes = {"num_processes": 1, "process_index": 0, "local_process_index": 0}
    times, args = ranks.count(), trainer.args
    passes = {
        name: times * getattr(args, name)
        for name in ("gradient_accumulation_steps", "steps_per_generation")
    }
    own_numbers, rewards = random_numbers(), list(trainer.reward_funcs)
    with (
        _changed(vars(args), passes),
        _changed(vars(trainer), {"model_wrapped": _unwrapped(trainer.model_wrapped)}),
        _changed(PartialState._shared_state, one),
        _changed(AcceleratorState._shared_state, one),
        # Nothing is gathered, reduced or broadcast but what is inside the model.
        _changed(vars(operations), {"TORCH_DISTRIBUTED_OPERATION_TYPES": []}),
    ):
        trainer.reward_funcs[:] = [_asked_once(function) for function in rewards]
        _same_numbers()
        try:
            yield
        finally:
            trainer.reward_funcs[:] = rewards
            own_numbers()


@contextmanager
def without_hidden_steps(trainer: GrpoTrainer) -> Iterator[None]:
    """Inside, a backward pass of DeepSpeed is refused: the last one of a step also steps, and what
    it leaves in DeepSpeed's buffers cannot be put back."""
    if not steps_in_backward(trainer):
        yield
        return

    def refuse(*_: Any, **__: Any) -> None:
        raise Lacking(Capability.GRADIENT, f"{HIDDEN}. {WITHOUT}.")

    with Patch(trainer, "training_step", refuse):
        yield


@contextmanager
def _changed(held: dict[str, Any], changes: Changes) -> Iterator[None]:
    before = {name: held[name] for name in changes}
    held.update(changes)
    try:
        yield
    finally:
        held.update(before)


def _unwrapped(model: Any) -> Any:
    """Without what averages gradients over processes: they are all the same here."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _same_numbers() -> None:
    """Every process draws what process 0 draws."""
    seed = int(ranks.first(torch.randint(2**31, ())))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _asked_once(function: Any) -> Any:
    """Process 0 asks and tells the others; models and coroutines are asked by each."""
    if not is_plain(function):
        return function

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> list[float | None]:
        paid: list[float | None] = []
        with ranks.agreeing():
            if ranks.number() == 0:
                paid = [None if one is None else float(one) for one in function(*args, **kwargs)]
        found: list[float | None] = ranks.told(paid)[0]
        return found

    return asked


def is_plain(function: Any) -> bool:
    """Whether a reward is paid by a call that returns when it is done."""
    call = getattr(function, "__call__", None)  # noqa: B004 -- an object may be async in its call
    slow = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return callable(function) and not isinstance(function, torch.nn.Module) and not slow
