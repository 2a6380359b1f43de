"""How the scripts of a module are listed: each is a function, under the name of the function."""

from collections.abc import Callable
from typing import Any


class Scripts(dict[str, Any]):
    """Every script by name: a function that makes its trainer, or what stands in its place."""

    def add(self, make: Callable[[], Any]) -> Callable[[], Any]:
        self[make.__name__.replace("_", "-")] = make
        return make
