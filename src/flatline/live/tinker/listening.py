"""Listening to the clients of the Tinker API, whoever made them."""

import inspect
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from flatline.errors import ConfigError
from flatline.live.hooks import Guard

Told = Callable[[Any], None]
"""What is done with the result of a call."""
Heard = Callable[[Any, dict[str, Any]], Told | None]
"""Told of a call before it is made: the client and the arguments by name."""


def clients() -> Any:
    """The package `tinker`."""
    try:
        return import_module("tinker")
    except ImportError as error:
        raise ConfigError(
            "The package `tinker` is not installed, so there is no client to listen to.\n"
            "Its clients are what a training loop on the Tinker API calls.\n"
            "Install the version that your server speaks: `pip install tinker`."
        ) from error


def listen(
    kind: type, name: str, heard: Heard, guard: Guard, refuse: Callable[[Any], None]
) -> Callable[[], None]:
    """`heard` is told of every call of a method, on whichever object; returns what ends that.

    `refuse` may raise before a call is made. What a kind does not have is not listened to."""
    original = vars(kind).get(name)
    if original is None:
        return lambda: None
    signature = inspect.signature(original)
    listening = True

    def before(client: Any, args: Any, kwargs: Any) -> list[Told]:
        told: list[Told] = []

        def hear() -> None:
            bound = signature.bind(client, *args, **kwargs)
            bound.apply_defaults()
            known = heard(client, bound.arguments)
            told.extend([known] if known else [])

        if listening:
            refuse(client)
            guard(hear)
        return told

    def after(told: list[Told], result: Any) -> Any:
        for one in told:
            guard(one, result)
        return result

    @wraps(original)
    def around(client: Any, *args: Any, **kwargs: Any) -> Any:
        told = before(client, args, kwargs)
        return after(told, original(client, *args, **kwargs))

    @wraps(original)
    async def around_async(client: Any, *args: Any, **kwargs: Any) -> Any:
        told = before(client, args, kwargs)
        return after(told, await original(client, *args, **kwargs))

    ours = around_async if inspect.iscoroutinefunction(original) else around
    setattr(kind, name, ours)

    def undo() -> None:
        """What somebody else put over ours stays; ours then only passes calls on."""
        nonlocal listening
        listening = False
        if vars(kind).get(name) is ours:
            setattr(kind, name, original)

    return undo
