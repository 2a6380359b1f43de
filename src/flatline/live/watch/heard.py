"""Listening to a model that flatline knows nothing of, and what it is given."""

import inspect
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flatline.errors import TraceError
from flatline.live.hooks import Guard
from flatline.live.watch.gradient import Inputs

NO_IDS = re.compile("mask|position|label|target|type")
"""In names of whole numbers that are given to a model and are no tokens."""
NO_STATE = re.compile("mask|position|embed|bias|label|target")
"""In names of tensors that are no memory of what came before."""
_LENGTH = ("get_seq_length", "get_pos")
"""What a cache calls the method that says how many tokens it holds."""


class Ear:
    """A hook on one object. Copies of the object, in memory or in a file, are not heard."""

    def __init__(self, owner: Any, heard: Callable[..., None], guard: Guard) -> None:
        self._owner, self._heard, self._guard = weakref.ref(owner), heard, guard

    def __call__(self, owner: Any, *args: Any) -> None:
        if owner is self._owner():
            self._guard(self._heard, *args)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return deaf

    def __reduce__(self) -> tuple[Any, ...]:
        return _deaf, ()


def deaf(*_: Any) -> None:
    """What a hook is in a copy."""


def _deaf() -> Callable[..., None]:
    return deaf


def refuse_foreign(model: nn.Module, optimizer: Any) -> list[Tensor]:
    """The parameters that the optimizer holds of the model; an error where it holds none."""
    if not callable(getattr(optimizer, "register_step_pre_hook", None)):
        raise TraceError(
            f"A {type(optimizer).__name__} is not a torch optimizer, so it cannot be watched.\n"
            "Give the `torch.optim` object whose `step()` the loop calls."
        )
    own = {id(weight) for weight in model.parameters()}
    held = [weight for group in optimizer.param_groups for weight in group["params"]]
    found = [weight for weight in held if id(weight) in own]
    if not found:
        raise TraceError(
            f"None of the {len(held)} tensors of this optimizer is a parameter of the model, so "
            "its steps would not change it.\n"
            "Make the optimizer after the model is in its final place and form: moving, wrapping "
            "or adding an adapter makes new parameters."
        )
    return found


def ends_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a sequence, as model and tokenizer say; where the model says nothing, as the
    language models inside it do."""
    inside = [part for part in model.modules() if hasattr(part, "get_output_embeddings")]
    said = _ends_in(model) or set().union(*map(_ends_in, inside))
    return frozenset(said | _as_ids(getattr(tokenizer, "eos_token_id", None)))


def _ends_in(model: Any) -> set[int]:
    configs = (getattr(model, name, None) for name in ("generation_config", "config"))
    return set().union(*(_as_ids(getattr(one, "eos_token_id", None)) for one in configs))


def _as_ids(given: Any) -> set[int]:
    return set(given if isinstance(given, list | tuple) else [] if given is None else [given])


def names_of(module: nn.Module) -> list[str]:
    """What the positional arguments of its forward pass are called."""
    return list(inspect.signature(module.forward).parameters)


def inputs_of(values: Mapping[str, Any]) -> Inputs | None:
    """What a model was given, by the names that models use; None without token ids."""
    named = values.get("input_ids")
    found = {"input_ids": named} if named is not None else values
    ids = next((v for name, v in found.items() if _is_ids(v) and not NO_IDS.search(name)), None)
    if ids is None:
        return None
    mask = values.get("attention_mask")
    plain = isinstance(mask, Tensor) and mask.shape == ids.shape
    return Inputs(
        ids=ids,
        attended=mask if plain else None,
        mask_is_odd=mask is not None and not plain,
        cached=_cached(values, ids),
        state_of_old=any(map(_is_left, _handed_on(values, ids))),
    )


def _is_ids(value: Any) -> bool:
    whole = isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
    return whole and value.ndim == 2


def _cached(values: Mapping[str, Any], ids: Tensor) -> int | None:
    """Tokens that a cache holds; of one token behind a state that is handed on, that there are
    some."""
    named = (value for name, value in values.items() if "cache" in name or name.startswith("past"))
    cache = next((v for v in named if v is not None and not isinstance(v, bool | Tensor)), None)
    if cache is None:
        return -1 if ids.shape[1] == 1 and any(map(_is_state, _handed_on(values, ids))) else None
    ask = next((found for name in _LENGTH if callable(found := getattr(cache, name, None))), None)
    if ask is not None:
        return int(ask())
    return -1 if _holds_tensors(cache) else 0


def _handed_on(values: Mapping[str, Any], ids: Tensor) -> list[Any]:
    return [v for name, v in values.items() if v is not ids and not NO_STATE.search(name)]


def _is_left(value: Any) -> bool:
    """Whether it is a state that a pass has left: what begins a sequence is nothing, or the same
    for all rows, whichever axis they are on."""
    if not _is_state(value):
        return False
    first = value
    while isinstance(first, tuple | list):
        first = first[0]
    alike = [torch.equal(first, first.narrow(at, 0, 1).expand_as(first)) for at in (0, 1)]
    return not any(same and first.shape[at] > 1 for at, same in enumerate(alike))


def _is_state(value: Any) -> bool:
    """Whether it may be what a recurrent layer returned: floats for each row."""
    if isinstance(value, tuple | list):
        return bool(value) and all(map(_is_state, value))
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1


def _holds_tensors(cache: Any, depth: int = 4) -> bool:
    """Whether anything is in it; of what cannot be looked into, that there is."""
    if isinstance(cache, Tensor) or depth == 0:
        return True
    if cache is None or isinstance(cache, bool | int | float | str | torch.dtype | torch.device):
        return False
    if not isinstance(cache, list | tuple | Mapping):
        cache = getattr(cache, "__dict__", None)
    if cache is None:
        return True
    parts = cache.values() if isinstance(cache, Mapping) else cache
    return any(_holds_tensors(part, depth - 1) for part in parts)
