"""Random numbers: those of the process, and generators that somebody keeps."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Undo = Callable[[], None]

_BIT_GENERATORS = (np.random.BitGenerator,)
GENERATORS = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    *_BIT_GENERATORS,
    random.Random,
)


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


def state_of_all() -> str:
    """Where the process's own random numbers are, in words that can be compared."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    held = [torch.get_rng_state(), *cuda]
    own = [random.getstate(), _plain(np.random.get_state())]
    return repr((own, [one.cpu().numpy().tobytes() for one in held]))


def state(generator: Any) -> Any:
    """Where a generator is, to be given to `set_state`."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, _BIT_GENERATORS):
        return generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return None if isinstance(generator, random.SystemRandom) else generator.getstate()


def set_state(generator: Any, value: Any) -> None:
    """Put it there again."""
    if isinstance(generator, torch.Generator):
        generator.set_state(value)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = value
    elif isinstance(generator, _BIT_GENERATORS):
        generator.state = value
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(value)
    elif value is not None:
        generator.setstate(value)


def told(generator: Any) -> str:
    """Where it is, in words that can be compared."""
    return repr(_plain(state(generator)))


def _plain(value: Any) -> Any:
    """With arrays as bytes: printed, long ones are shortened."""
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else value
