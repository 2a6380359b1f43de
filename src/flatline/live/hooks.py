"""Listening to the methods of one live object, and leaving it exactly as it was."""

import copy
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn

from flatline.trace.announce import say

_ABSENT = object()

Heard = Callable[[tuple[Any, ...], dict[str, Any], Any, float], None]
"""Told of one call: its arguments, its keywords, its result and its seconds."""


class Guard:
    """Runs our own work. The first thing that goes wrong in it is said once and ends recording."""

    def __init__(self, on_stop: Callable[[str], None] = lambda _: None) -> None:
        """`on_stop` is told why."""
        self.broken = False
        self._on_stop = on_stop

    def __call__(self, work: Callable[..., object], *args: Any) -> None:
        if self.broken:
            return
        try:
            work(*args)
        except Exception as error:
            self.stop(error)

    def stop(self, error: Exception) -> None:
        """Because of this error, if it is the first."""
        if self.broken:
            return
        self.broken = True
        with suppress(Exception):  # even what describes itself badly must not reach the training
            where = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            say(f"recording stopped, training goes on: {why}. Please report it.")
            self._on_stop(why)


class Once:
    """A method of the trainer on behalf of a hook: it is called once, however the hook ends."""

    def __init__(self, original: Callable[..., Any], guard: Guard) -> None:
        self._original, self._guard = original, guard
        self._called = False
        self._result: Any = None
        self._raised: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._called = True
        try:
            self._result = self._original(*args, **kwargs)
        except BaseException as error:
            self._raised = error
            raise
        return self._result

    def through(self, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the method returns or raises; an error of the hook's own ends the recording."""
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            if self._raised is None:
                self._guard.stop(error)
        if self._raised is None:
            return self._result if self._called else self._original(*args, **kwargs)
        try:
            raise self._raised
        finally:
            self._raised = None  # a circle would keep the tensors of a failed pass in memory


class Hooked:
    """A method of the trainer with our hook around it. A deep copy of the trainer gets its own
    method back: a copy is not recorded, and must not call the trainer that it is a copy of."""

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original, self._call = original, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._original, memo)


class Replaced:
    """Methods replaced on instances. Each can be put back, also where others replaced it since."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, ours: Any) -> None:
        self._done.append((owner, name, ours, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, ours)

    def undo(self) -> None:
        """What somebody else put over ours stays; ours then only passes calls on."""
        for owner, name, ours, before in reversed(self._done):
            if vars(owner).get(name) is ours:
                _put_back(owner, name, before)
        self._done.clear()


@contextmanager
def listening(owner: Any, name: str | None, heard: Heard, guard: Guard) -> Iterator[None]:
    """Inside, `heard` is told of every call of `owner.name`, as it stands at this moment.

    A method that was replaced after `attach` is therefore heard as well.
    """
    original = getattr(owner, name, None) if name else None
    if name is None or original is None:
        yield
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        guard(heard, args, kwargs, result, time.perf_counter() - start)
        return result

    with put_in_place(owner, name, call):
        yield


@contextmanager
def put_in_place(owner: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Inside, `owner.name` is `method`."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, method)
    try:
        yield
    finally:
        _put_back(owner, name, before)


@contextmanager
def watching_attention(
    modules: Sequence[nn.Module], heard: Callable[[int, Any], None], guard: Guard
) -> Iterator[None]:
    """Inside, `heard` is told the depth and the attention mask of every forward pass."""

    def hook_at(depth: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            guard(heard, depth, kwargs.get("attention_mask"))

        return hook

    handles = [
        module.register_forward_pre_hook(hook_at(depth), with_kwargs=True)
        for depth, module in enumerate(modules)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def nested_models(model: nn.Module) -> list[nn.Module]:
    """The model as the trainer calls it, without its adapter's shell, and without its head.

    A mask may be changed on the way down, so the innermost module that is given one counts.
    """
    causal = without_adapter(model)
    found = [model, causal]
    decoder = getattr(causal, getattr(causal, "base_model_prefix", "") or "model", None)
    if isinstance(decoder, nn.Module):
        found.append(decoder)
    return list(dict.fromkeys(found))


def without_adapter(model: nn.Module) -> nn.Module:
    """The model inside its adapter's shell."""
    inside = getattr(model, "get_base_model", None)
    base: nn.Module = inside() if callable(inside) else model
    return base


def is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2


def _put_back(owner: Any, name: str, before: Any) -> None:
    if before is _ABSENT:
        vars(owner).pop(name, None)
    else:
        setattr(owner, name, before)
