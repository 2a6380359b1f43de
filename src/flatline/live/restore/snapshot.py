"""A training as it is now, to go back to: as often as is asked, until somebody trains."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn

from flatline.live.held import at_rest, elements
from flatline.live.restore import numbers
from flatline.live.restore.belongs import is_opaque
from flatline.live.restore.keep import Kept
from flatline.live.restore.place import Place
from flatline.live.restore.tell import NotKept
from flatline.live.restore.tensors import COPIED_UP_TO, Tensors
from flatline.live.restore.walk import Walk

NUMBERS = "the random numbers of Python, numpy and torch"

Digests = list[tuple[str, str]]
"""Of each thing that is kept: where it is, and what it holds."""


class Snapshot:
    """What a training holds, and the way back to it."""

    def __init__(
        self,
        *,
        models: Sequence[nn.Module],
        optimizer: Any = None,
        tensors: Sequence[Tensor] = (),
        users: Mapping[str, Any],
        machinery: Mapping[str, Any],
        without: Sequence[Any] = (),
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """The first of the models is the one that is trained. `tensors` are others that a
        measurement changes. `users` are the user's own things by
        what the user calls them; of `machinery` only attributes and containers are kept where it
        is none of a training's. Nothing of `without` is looked into. `pause` is called before
        anything is tried."""
        self._pause, self._models = pause, models
        self._rest()
        walk = Walk(without=without, models=models, few_weights=_only_watched(models))
        for number, model in enumerate(models):
            what = "the model" if number == 0 else "the reference model"
            walk.follow(model, Place(what, many=True))
        name = f"your optimizer `{type(optimizer).__name__}`"
        walk.follow(optimizer, Place(name, must=True, many=True))
        walk.follow(list(tensors), Place("the sampler's copy", must=True, many=True))
        for name, one in users.items():
            walk.follow(one, Place(name, users=True, shallow=is_opaque(type(one))))
        for name, one in machinery.items():
            walk.follow(one, Place(name, shallow=is_opaque(type(one))))
        walk.finish()
        self.not_kept: tuple[NotKept, ...] = tuple(dict.fromkeys(walk.not_kept))
        """What a measurement may change for good."""
        self.not_looked_into = tuple(dict.fromkeys(walk.not_looked_into))
        self._iterators, self._kept = walk.iterators, walk.kept
        self._tensors = Tensors(walk.tensors)
        self._numbers = numbers.random_numbers()

    @property
    def size(self) -> int:
        """Things that are kept."""
        return len(self._kept) + len(self._tensors.copied) + 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What happens inside leaves no mark. Can be used again while nobody trains."""
        self._pause()
        try:
            yield
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Everything as it was."""
        self._rest()
        self._iterators.renew()
        for one in self._kept:
            with suppress(Exception):  # the digest tells; the others are put back all the same
                one.put_back()
        self._tensors.put_back()
        self._numbers()

    def digests(self) -> Digests:
        """What everything holds now. Tensors that were too large to copy are in it."""
        found = [(str(one.place), _short(_state(one))) for one in self._kept]
        found += [(str(place), _short(state)) for place, state in self._tensors.states()]
        return [*found, (NUMBERS, _short(numbers.state_of_all()))]

    def _rest(self) -> None:
        for model in self._models:
            at_rest(model)


def _state(one: Kept) -> str:
    try:
        return one.state()
    except Exception as error:
        return type(error).__name__


def _short(state: str) -> str:
    return hashlib.blake2b(state.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def digest_of(digests: Digests) -> str:
    """All of them in one."""
    found = hashlib.sha256()
    for place, state in digests:
        found.update(f"{place}\n{state}\n".encode(errors="surrogatepass"))
    return found.hexdigest()[:16]


def differing(before: Digests, after: Digests) -> tuple[str, ...]:
    """Where two of one snapshot differ."""
    pairs = zip(before, after, strict=True)
    return tuple(dict.fromkeys(was[0] for was, now in pairs if was != now))


def _only_watched(models: Sequence[nn.Module]) -> list[nn.Module]:
    """Models of which frozen weights are not copied. Nothing here changes those, but a sampler that
    merges adapters in place may round them."""
    sizes = [sum(elements(weight) for weight in model.parameters()) for model in models]
    return [
        model
        for number, (model, size) in enumerate(zip(models, sizes, strict=True))
        if number or size > COPIED_UP_TO
    ]
