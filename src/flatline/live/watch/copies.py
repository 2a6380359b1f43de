"""Copies of the watched model that sample in its place: do they ever get its weights?

Hooks on a model do not hear its copy. Where rewards come for rows that the model did not sample,
its copies are looked for among all objects of the process, once, and what samples from then on is
listened to. What changes is compared by value: a delivery of names that do not fit delivers nothing
and raises nothing.
"""

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flatline.live.hooks import Guard
from flatline.live.watch.head import owners_of
from flatline.live.watch.heard import Ear, inputs_of, names_of


class Copies:
    """Modules outside of a model that are built as it is, or as the part of it with its head."""

    def __init__(
        self, model: nn.Module, head: nn.Module, guard: Guard, tell: Callable[..., None]
    ) -> None:
        """`tell` is given what is known, by name, whenever it changes."""
        self._model, self._head, self._guard, self._tell = model, head, guard, tell
        self._found: list[_Copy] | None = None

    def rewarded(self, step: int) -> list[Any]:
        """Rewards came for rows from elsewhere, after so many steps; returns new hooks."""
        if self._found is None:
            self._found = [_Copy(one, step) for one in _twins(self._model, self._head)]
            return [one.listened_to(self._guard) for one in self._found]
        sampling = [one for one in self._found if one.still_there() and one.samples]
        for one in sampling:
            one.compare()
        if sampling:
            one = max(sampling, key=lambda each: each.changes)  # another may be frozen on purpose
            self._tell(steps=step - one.since, changes=one.changes)
        return []


class _Copy:
    """One of them."""

    def __init__(self, module: nn.Module, step: int) -> None:
        self._module, self.since = weakref.ref(module), step
        self.samples = False
        """Whether it was seen to be given what it wrote."""
        self.changes = 0
        self._last: Tensor | None = None
        self._values = _values(module)

    def listened_to(self, guard: Guard) -> Any:
        module = self._module()
        assert module is not None
        names = names_of(module)

        def given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            inputs = inputs_of({**dict(zip(names, args, strict=False)), **kwargs})
            self._given(None if inputs is None else inputs.ids)

        ear = Ear(module, given, guard)
        return module.register_forward_pre_hook(ear, with_kwargs=True)

    def still_there(self) -> bool:
        return self._module() is not None

    def compare(self) -> None:
        """Whether it has other weights than when it was looked at last."""
        module = self._module()
        now = self._values if module is None else _values(module)
        self.changes += not torch.equal(now, self._values)
        self._values = now

    def _given(self, ids: Tensor | None) -> None:
        before, self._last = self._last, None if ids is None else ids.detach()
        if before is None or ids is None or len(before) != len(ids):
            return
        grown = ids.shape[1] == before.shape[1] + 1 and torch.equal(ids[:, :-1], before)
        self.samples |= grown or (ids.shape[1] == 1 and not torch.is_grad_enabled())


def _twins(model: nn.Module, head: nn.Module) -> list[nn.Module]:
    own = {id(part) for part in model.modules()}
    shapes = {type(part): _shapes(part) for part in owners_of(model, head)}
    every = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    own |= {id(getattr(one, "_orig_mod", None)) for one in every}  # hooks would change its graph
    return [one for one in every if id(one) not in own and shapes.get(type(one)) == _shapes(one)]


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Of all weights that it has without adapters: who samples may know nothing of them."""
    adapters = {
        f"{name}.{part}." if name else f"{part}."
        for name, layer in module.named_modules()
        if hasattr(layer, "base_layer")
        for part, _ in layer.named_children()
        if part != "base_layer"
    }
    own = (
        (name.replace(".base_layer.", "."), weight)
        for name, weight in module.named_parameters()
        if not name.startswith(tuple(adapters))
    )
    return {name: weight.shape for name, weight in own}


def _values(module: nn.Module) -> Tensor:
    """A number of each weight that a step changes."""
    with torch.no_grad():
        return torch.stack([weight.float().sum().cpu() for weight in module.parameters()])
