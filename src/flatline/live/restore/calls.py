"""How often functions of the user's are called."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import nn


class Calls:
    """Counts them, by their names."""

    def __init__(self) -> None:
        self.counted = Counter[str]()

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted. A model is left as it is: TRL knows it by its class."""
        if isinstance(function, nn.Module):
            return function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wait(*args: Any, **kwargs: Any) -> Any:
                self.counted[name] += 1
                return await function(*args, **kwargs)

            return wait

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.counted[name] += 1
            return function(*args, **kwargs)

        return call
