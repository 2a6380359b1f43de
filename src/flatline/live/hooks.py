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


class Patch:
    """One method of one object with ours in its place, until `undo`; also a context manager.

    `around(original, ...)` answers its calls. Where the object has no such method, nothing happens.
    A deep copy of the object gets its own method back: it is not listened to, and must not call the
    object that it is a copy of.
    """

    def __init__(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original: Any = getattr(owner, name, None)
        functools.update_wrapper(self, original)  # first: it copies what another patch holds
        self._owner, self._name, self._original = owner, name, original
        self._around: Callable[..., Any] | None = around
        self._before = vars(owner).get(name, _ABSENT)
        if original is not None:
            vars(owner)[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._around is None:
            return self._original(*args, **kwargs)
        return self._around(self._original, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._original, memo)

    def undo(self) -> None:
        """What somebody else put over ours stays; ours then only passes calls on."""
        self._around = None
        if vars(self._owner).get(self._name) is self:
            _put_back(self._owner, self._name, self._before)

    def __enter__(self) -> "Patch":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def listening(owner: Any, name: str, heard: Heard, guard: Guard) -> Patch:
    """`heard` is told of every call of `owner.name`, as it stands at this moment: a method that was
    replaced after `attach` is heard as well."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        guard(heard, args, kwargs, result, time.perf_counter() - start)
        return result

    return Patch(owner, name, around)


def on_class(kind: type, name: str, around: Callable[..., Any]) -> None:
    """`around(original, self, ...)` answers every call of a method, of all objects of a class: for
    objects that somebody else makes. It stays there as long as the process lives."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(kind, name, method)


@contextmanager
def swapped(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes with other values for a while; the object then has its own again, or none."""
    before = {name: vars(owner).get(name, _ABSENT) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            _put_back(owner, name, value)


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
        vars(owner)[name] = before
