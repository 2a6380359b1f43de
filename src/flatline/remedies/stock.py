"""A method of TRL's own in place of the one that a script has put over it."""

from typing import Any

from flatline.errors import ConfigError
from flatline.live.hooks import Patch
from flatline.live.where.package import TRL, library_of
from flatline.remedies.base import Tally, Undo


def stock_class(trainer: Any) -> type:
    """The class of TRL's that a trainer is, or is built on."""
    for kind in type(trainer).__mro__:
        if library_of(kind.__module__) == TRL:
            return kind
    raise ConfigError(
        f"A {type(trainer).__name__} is not built on a trainer of TRL's.\n"
        "What it should do instead of its own cannot be known."
    )


def own_method(trainer: Any, name: str, tally: Tally) -> list[Undo]:
    """TRL's own method, where the trainer has another; nothing where it has not."""
    stock = getattr(stock_class(trainer), name, None)
    if stock is None or getattr(type(trainer), name) is stock:
        return []

    def around(_: Any, *args: Any, **kwargs: Any) -> Any:
        tally.count(True)
        return stock(trainer, *args, **kwargs)

    return [Patch(trainer, name, around).undo]
