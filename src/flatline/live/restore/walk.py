"""Everything that is reachable from some roots, each thing once, and how it is kept.

Values are read from dictionaries, slots and cells alone: no property and no `__getattr__` of
anybody's runs. Modules, classes of libraries and machinery (`belongs.OPAQUE`) are not looked into.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatline.live.restore import belongs, buffers, callables, keep
from flatline.live.restore.place import Place
from flatline.live.restore.tell import NotKept
from flatline.live.restore.tensors import COPIED_UP_TO, Found, Gradient

MANY = 10_000
"""Entries of a container that is data rather than state: only which they are is kept."""
MOST = 100_000
"""Things that are looked at. One of a model or of its optimizer counts as a fiftieth: large ones
have hundreds of thousands."""

_Visit = Callable[["Walk", Any, Place], None]


class Walk:
    """What was found. Roots are followed in their order: the first to reach a thing names it."""

    def __init__(
        self,
        *,
        without: Sequence[Any] = (),
        models: Sequence[nn.Module] = (),
        few_weights: Sequence[nn.Module] = (),
    ) -> None:
        """Nothing of `without` is looked into. Weights and buffers of `models` are copied, however
        large they are; but frozen weights of `few_weights` are only watched."""
        self.kept: list[keep.Kept] = []
        self.tensors: list[Found] = []
        self.iterators = keep.Iterators()
        self.not_kept: list[NotKept] = []
        self.not_looked_into: list[str] = []
        self.seen: dict[int, Any] = {id(one): one for one in without}
        """Kept alive: another thing may not have its identity."""
        self._memory: set[Any] = set()
        self.names: dict[int, tuple[dict[str, Any], dict[str, None], Place]] = {}
        self._own = {id(x) for one in models for x in (*one.parameters(), *one.buffers())}
        self._few = {id(weight) for one in few_weights for weight in one.parameters()}
        self._waiting: deque[tuple[Any, Place]] = deque()
        self._left = float(MOST)
        self._elements = 0

    def follow(self, thing: Any, place: Place) -> None:
        """This, and all that can be reached from it."""
        self._waiting.append((thing, place))
        while self._waiting:
            one, where = self._waiting.popleft()
            try:
                self._visit(one, where)
            except Exception as error:  # what somebody's class does when it is looked at
                self.not_looked_into.append(f"{where}: {type(error).__name__}")

    def finish(self) -> None:
        """Names of modules: only now are all of them known."""
        for module, names, place in self.names.values():
            self.hold(place, keep.of_module(module, list(names)))
        self.names = {}

    # -- one thing

    def _visit(self, thing: Any, place: Place) -> None:
        kind = type(thing)
        if kind in keep.ATOMS or id(thing) in self.seen or self._left <= 0:
            return
        if issubclass(kind, ModuleType):
            return
        self._left -= 0.02 if place.many else 1
        if self._left <= 0:
            self.not_looked_into.append(f"{place}: more than {MOST:,} things are reachable")
        self.seen[id(thing)] = thing
        for kinds, visit in _HOW:
            if issubclass(kind, kinds):
                visit(self, thing, place)
                return
        self._object(thing, place)

    def reach(self, thing: Any, place: Place) -> None:
        if type(thing) not in keep.ATOMS:
            self._waiting.append((thing, place))

    def hold(self, place: Place, how: Any) -> None:
        read, write = how
        self.kept.append(keep.Held(place, read, write, self.iterators))

    def _entries(self, entries: Iterable[tuple[str, Any]], size: int, place: Place) -> None:
        """What a container holds; in the hands of a machinery, only further containers."""
        listed = [pair for pair in entries if type(pair[1]) not in keep.ATOMS]
        if size > MANY and listed and not place.many:
            said = f"{place}: entries of a container of {size:,}"
            self.not_looked_into += [said] if place.users else []
            return
        for step, one in listed:
            if not place.shallow or isinstance(one, dict | list | set | deque | tuple):
                self.reach(one, place.at(step))

    def _dict(self, value: dict[Any, Any], place: Place) -> None:
        self.hold(place, keep.of_dict(value))
        self.attributes(value, place)
        self._entries(((f"[{_short(k)}]", v) for k, v in list(value.items())), len(value), place)
        self._entries(((".keys()", k) for k in list(value)), len(value), place)
        if isinstance(value, defaultdict):
            self.reach(value.default_factory, place.at(".default_factory"))

    def _list(self, value: Any, place: Place) -> None:
        how = keep.of_list(value) if isinstance(value, list) else keep.of_deque(value)
        self.hold(place, how)
        self.attributes(value, place)
        self._entries(((f"[{k}]", one) for k, one in enumerate(list(value))), len(value), place)

    def _set(self, value: set[Any], place: Place) -> None:
        self.hold(place, keep.of_set(value))
        self.attributes(value, place)
        self._entries((("{}", one) for one in list(value)), len(value), place)

    def _fixed(self, value: Any, place: Place) -> None:
        """A container that cannot change, of things that can."""
        if type(value) is MappingProxyType:
            value = tuple(value.values())
        self._entries(((f"[{k}]", one) for k, one in enumerate(value)), len(value), place)
        for one in value if len(value) <= MANY else ():
            if type(one) in keep.RENEWED:
                self.cannot(one, place, "an iterator in a tuple, which cannot be turned back")

    def _tensor(self, tensor: Tensor, place: Place) -> None:
        if not place.shallow:
            frozen = id(tensor) in self._few and not tensor.requires_grad
            self._add_tensor(tensor, place, watched=frozen)
        sharded = any(hasattr(tensor, name) for name in ("ds_numel", "_hp_mapping", "to_local"))
        weight = tensor.requires_grad or isinstance(tensor, nn.Parameter)
        if tensor.is_leaf and weight and not tensor.is_meta:
            self.kept.append(Gradient(tensor, place.at(".grad")))
            if tensor.grad is not None:
                self.seen[id(tensor.grad)] = tensor.grad
        if not sharded:
            self.attributes(tensor, place)

    def _add_tensor(self, tensor: Tensor, place: Place, *, watched: bool) -> None:
        plain = not tensor.is_meta and tensor.layout is torch.strided
        alias = False
        if plain and not hasattr(tensor, "ds_tensor") and not hasattr(tensor, "to_local"):
            key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            alias = key in self._memory
            self._memory.add(key)
        must = not watched and (place.must or id(tensor) in self._own)
        self.tensors.append(Found(tensor, place, must, watched, alias))

    def _buffer(self, thing: Any, place: Place) -> None:
        if isinstance(thing, np.ndarray):
            if isinstance(thing, np.memmap):
                if thing.flags.writeable and place.users:
                    self.cannot(thing, place, "an array in a file, which is written in place")
                return
            if thing.dtype.hasobject:
                self._fixed(tuple(thing.flat), place)
            self._elements += thing.size
            if not thing.flags.writeable or self._elements > COPIED_UP_TO:
                return
        self.kept.append(buffers.OfBuffer(place, thing))

    def _iterator(self, thing: Any, place: Place) -> None:
        try:
            self.iterators.add(thing)
        except Exception:  # newer Pythons copy fewer of them
            self.cannot(thing, place, "an iterator, which cannot be turned back")
        self._fixed(tuple(thing.__reduce__()[1]), place)

    def _object(self, thing: Any, place: Place) -> None:
        kind = type(thing)
        what = belongs.lost(thing)
        if what:
            if place.users:
                self.cannot(thing, place, what)
            return
        if belongs.is_opaque(kind) and not place.shallow:
            if place.users and belongs.within(belongs.module_of(kind), ("pandas",)):
                self._unknown(kind, place)
            self.reach((_dictionary(thing) or {}).get("__wrapped__"), place)
            return
        module = belongs.module_of(kind)
        users = belongs.is_users(module) or (
            place.users and belongs.within(module, belongs.INHERITS)
        )
        inside = place.at("", users=users)
        slots = list(keep.slots_of(kind))
        self.attributes(thing, inside)
        if slots:
            how = keep.of_slots(thing, slots)
            self.hold(inside, how)
            names = [f".{slot.__name__}" for slot in slots]
            self._entries(zip(names, how[0](), strict=True), len(names), inside)
        if not slots and not hasattr(thing, "__dict__") and place.users:
            self._unknown(kind, place)
        self.reach(kind, place)

    def attributes(self, thing: Any, place: Place) -> None:
        """What an object keeps in its own dictionary."""
        own = _dictionary(thing)
        if own is not None and id(own) not in self.seen:
            self.seen[id(own)] = own
            self.hold(place, keep.of_dict(own))
            self._entries(((f".{name}", one) for name, one in list(own.items())), 0, place)

    def _unknown(self, kind: type, place: Place) -> None:
        if belongs.module_of(kind) not in _HARMLESS:
            said = f"{place}: {belongs.module_of(kind)}.{kind.__name__}"
            self.not_looked_into.append(said)

    def cannot(self, thing: Any, place: Place, what: str) -> None:
        self.seen[id(thing)] = thing
        self.not_kept.append(NotKept(str(place), what))


def _dictionary(thing: Any) -> dict[str, Any] | None:
    """Its own, without asking any method of its class."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def _short(key: Any) -> str:
    return repr(key)[:40] if type(key) in keep.ATOMS else type(key).__name__


_HARMLESS = ("builtins", "datetime", "decimal", "torch", "numpy", "re", "regex", "_thread", "types")
_HOW: tuple[tuple[Any, _Visit], ...] = (
    (Tensor, Walk._tensor),
    (buffers.BUFFERS, Walk._buffer),
    (keep.RENEWED, Walk._iterator),
    (dict, Walk._dict),
    (list | deque, Walk._list),
    (set, Walk._set),
    (tuple | frozenset | MappingProxyType, Walk._fixed),
    (FunctionType, callables.of_function),
    (MethodType, callables.of_method),
    (BuiltinFunctionType, callables.of_builtin),
    (partial, callables.of_partial),
    (type, callables.of_class),
    (property | staticmethod | classmethod, callables.of_descriptor),
)
"""By the class of a thing; anything else is an object with attributes."""
