"""A trainer that does for a while what TRL's own class does, whatever was changed in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flatline.live.hooks import swapped
from flatline.remedies.stock import stock_class


@contextmanager
def as_shipped(trainer: Any) -> Iterator[None]:
    """TRL's own methods in place of a script's, of remedies and of a recording."""
    stock = stock_class(trainer)
    own = {
        name: method.__get__(trainer)
        for name, method in vars(stock).items()
        if callable(method) and not name.startswith("__") and not isinstance(method, type)
    }
    others = {
        name: method
        for name, method in own.items()
        if name in vars(trainer) or getattr(type(trainer), name, None) is not vars(stock)[name]
    }
    with swapped(trainer, **others):
        yield
