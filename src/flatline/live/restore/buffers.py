"""What is read and written as one value: bytes, arrays, files in memory, random generators."""

import io
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from flatline.live.restore import numbers
from flatline.live.restore.keep import mark
from flatline.live.restore.place import Place


class OfBuffer:
    """One of them."""

    def __init__(self, place: Place, thing: Any) -> None:
        self.place, self._thing = place, thing
        self._get, self._set, self._told = _value_of(thing)
        self._held = self._get()
        self._was = self._told()

    def put_back(self) -> None:
        if self._told() != self._was:
            self._set(self._held)

    def state(self) -> str:
        return self._told()


def _value_of(
    thing: Any,
) -> tuple[Callable[[], Any], Callable[[Any], None], Callable[[], str]]:
    if isinstance(thing, numbers.GENERATORS):
        return (
            lambda: numbers.state(thing),
            lambda held: numbers.set_state(thing, held),
            lambda: numbers.told(thing),
        )
    if isinstance(thing, np.ndarray):
        return thing.copy, lambda held: np.copyto(thing, held), lambda: _bits(thing)
    if isinstance(thing, io.StringIO | io.BytesIO):
        return lambda: _written(thing), lambda held: _rewrite(thing, held), lambda: _text(thing)

    def write(held: Any) -> None:
        thing[:] = held

    return lambda: thing[:], write, lambda: repr(bytes(thing))


BUFFERS = (*numbers.GENERATORS, np.ndarray, io.StringIO, io.BytesIO, bytearray, array)


def _bits(value: np.ndarray[Any, Any]) -> str:
    if value.dtype.hasobject:
        return ",".join(map(mark, value.flat))
    return str(hash(np.ascontiguousarray(value).tobytes()))


def _written(file: Any) -> tuple[Any, int] | None:
    return None if file.closed else (file.getvalue(), file.tell())


def _text(file: Any) -> str:
    return repr(_written(file))


def _rewrite(file: Any, held: tuple[Any, int] | None) -> None:
    if held is not None and not file.closed:
        file.seek(0)
        file.truncate()
        file.write(held[0])
        file.seek(held[1])
