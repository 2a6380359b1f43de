"""What a Python object holds, put back into the same object.

Nothing is written where nothing changed: a container is compared entry by entry, by identity, so
that no `__eq__` of the user's runs. `state` is what is compared before and after: values of plain
entries, identities of others, which are kept alive meanwhile.
"""

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import count
from operator import is_
from types import CellType
from typing import Any, Protocol

from flatline.live.restore.place import Place

ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice})
RENEWED: tuple[type[Any], ...] = (
    count,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter("")),
)
"""Iterators that can be copied and not turned back: whoever holds one is given the copy."""
_ABSENT = object()


class Kept(Protocol):
    """One thing that can be put back."""

    @property
    def place(self) -> Place:
        """Where it was found."""

    def put_back(self) -> None:
        """What it held, into the same object."""

    def state(self) -> str:
        """What it holds now, to be compared."""


class Iterators:
    """Copies of iterators, and which copy stands for one now."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}
        self._now: dict[int, Any] = {}

    def add(self, one: Any) -> None:
        self._saved[id(one)] = (one, copy.copy(one))
        self._now[id(one)] = one

    def renew(self) -> None:
        """Those that went on are replaced by a copy from before."""
        for key, (_, saved) in self._saved.items():
            if repr(self._now[key].__reduce__()) != repr(saved.__reduce__()):
                self._now[key] = copy.copy(saved)

    def standing_for(self, held: Sequence[Any]) -> list[Any]:
        return [self._now.get(id(one), one) for one in held]


class Held:
    """Something with entries: how they are read and written is all that differs."""

    def __init__(
        self,
        place: Place,
        read: Callable[[], list[Any]],
        write: Callable[[list[Any]], None],
        iterators: Iterators,
    ) -> None:
        self.place, self._read, self._write = place, read, write
        self._held = read()
        self._iterators = iterators

    def put_back(self) -> None:
        wanted, now = self._iterators.standing_for(self._held), self._read()
        if len(now) != len(wanted) or not all(map(is_, now, wanted)):
            self._write(wanted)

    def state(self) -> str:
        return ",".join(map(mark, self._read()))


def of_dict(value: dict[Any, Any]) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    """Keys, then values; by the methods of `dict`, whatever its class makes of them."""
    kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict

    def read() -> list[Any]:
        return [*kind.keys(value), *kind.values(value)]

    def write(held: list[Any]) -> None:
        kind.clear(value)
        half = len(held) // 2
        for name, one in zip(held[:half], held[half:], strict=True):
            kind.__setitem__(value, name, one)

    return read, write


def of_list(value: list[Any]) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    return lambda: list.copy(value), lambda held: list.__setitem__(value, slice(None), held)


def of_deque(value: deque[Any]) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    def write(held: list[Any]) -> None:
        deque.clear(value)
        deque.extend(value, held)

    return lambda: list(deque.__iter__(value)), write


def of_set(value: set[Any]) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    def write(held: list[Any]) -> None:
        set.clear(value)
        set.update(value, held)

    return lambda: sorted(set.__iter__(value), key=id), write


def of_cell(cell: CellType) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    def read() -> list[Any]:
        try:
            return [cell.cell_contents]
        except ValueError:  # not filled yet
            return []

    def write(held: list[Any]) -> None:
        if held:
            cell.cell_contents = held[0]
        else:
            del cell.cell_contents

    return read, write


def of_names(
    names: Sequence[str],
    get: Callable[[str, Any], Any],
    put: Callable[[str, Any], None],
    drop: Callable[[str], None],
) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    """Some names of something, which may be absent."""

    def read() -> list[Any]:
        return [get(name, _ABSENT) for name in names]

    def write(held: list[Any]) -> None:
        for name, now, one in zip(names, read(), held, strict=True):
            if one is _ABSENT and now is not _ABSENT:
                drop(name)
            elif one is not now:
                put(name, one)

    return read, write


def of_module(
    module: MutableMapping[str, Any], names: Sequence[str]
) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    return of_names(names, module.get, module.__setitem__, module.__delitem__)


def of_slots(
    thing: Any, slots: Sequence[Any]
) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    """By the descriptors of the class: a frozen dataclass refuses any other way."""
    by_name = {str(number): slot for number, slot in enumerate(slots)}

    def get(name: str, absent: Any) -> Any:
        try:
            return by_name[name].__get__(thing, type(thing))
        except AttributeError:
            return absent

    return of_names(
        list(by_name),
        get,
        lambda name, one: by_name[name].__set__(thing, one),
        lambda name: by_name[name].__delete__(thing),
    )


class OfClass:
    """What a class of the user's keeps for all its objects."""

    def __init__(self, place: Place, kind: type) -> None:
        self.place, self._kind = place, kind
        self._held = self.entries()

    def entries(self) -> dict[str, Any]:
        return {name: one for name, one in vars(self._kind).items() if not _of_python(name)}

    def put_back(self) -> None:
        now = self.entries()
        for name in now.keys() - self._held.keys():
            type.__delattr__(self._kind, name)
        for name, one in self._held.items():
            if now.get(name, _ABSENT) is not one:
                type.__setattr__(self._kind, name, one)

    def state(self) -> str:
        return ",".join(f"{name}={mark(one)}" for name, one in sorted(self.entries().items()))


def _of_python(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name.startswith("_abc_")


def mark(one: Any) -> str:
    """What can be compared of an entry."""
    kind = type(one)
    if kind is str or kind is bytes:
        return f"{kind.__name__}{len(one)}:{hash(one)}"
    if kind in ATOMS:
        return f"{kind.__name__}:{one!r}"
    if kind in RENEWED:
        return repr(one.__reduce__())
    if isinstance(one, type):
        return f"type:{id(one)}"
    return f"{kind.__name__}@{id(one)}"


def slots_of(kind: type) -> Iterator[Any]:
    """Descriptors of what objects of a class hold beside a dictionary."""
    for base in kind.__mro__:
        if "__slots__" not in vars(base):
            continue
        for name in _names(vars(base)["__slots__"]):
            mangled = f"_{base.__name__.lstrip('_')}{name}"
            private = name.startswith("__") and not name.endswith("__")
            found = vars(base).get(mangled if private else name)
            if hasattr(found, "__set__") and name not in ("__dict__", "__weakref__"):
                yield found


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
