"""Listening to a model that flatline knows nothing of: where its head is, what it is given."""

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flatline.errors import ModelError, TraceError
from flatline.live.hooks import Guard
from flatline.live.watch.gradient import Inputs

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


def head_of(model: Any) -> nn.Module:
    """The module that makes logits."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"`watch` was given a {type(model).__name__}, and listens to a torch module.\n"
            "Give the model that the loop trains: `flatline.watch(model, optimizer, run_dir)`."
        )
    if hasattr(model, "_orig_mod"):
        raise ModelError(
            "This model is compiled, and a hook would change its graph.\n"
            "Watch a few steps without `torch.compile`."
        )
    ask = getattr(model, "get_output_embeddings", None)
    head = ask() if callable(ask) else getattr(model, "lm_head", None)
    if not isinstance(head, nn.Module):
        raise ModelError(
            f"A {type(model).__name__} has no head that makes logits (`get_output_embeddings()` "
            "gives none, and there is no `lm_head`).\n"
            "Which tokens are trained is read from the gradient at the logits.\n"
            "Give the whole causal language model, such as one of `AutoModelForCausalLM`."
        )
    return head


def refuse_foreign(model: nn.Module, optimizer: Any) -> list[Tensor]:
    """The parameters that the optimizer holds of the model; an error where it holds none."""
    if not callable(getattr(optimizer, "register_step_pre_hook", None)):
        raise TraceError(
            f"A {type(optimizer).__name__} cannot be listened to: it is no torch optimizer.\n"
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
    """Ids that end a sequence, as model and tokenizer say."""
    owners = (getattr(model, "generation_config", None), getattr(model, "config", None), tokenizer)
    found: set[int] = set()
    for owner in owners:
        ids = getattr(owner, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return frozenset(found)


def names_of(module: nn.Module) -> list[str]:
    """What the positional arguments of its forward pass are called."""
    return list(inspect.signature(module.forward).parameters)


def inputs_of(values: Mapping[str, Any]) -> Inputs | None:
    """What a model was given, by the names that models use; None without token ids."""
    named = values.get("input_ids")
    found = (named,) if named is not None else values.values()
    ids = next((value for value in found if _is_ids(value)), None)
    if ids is None:
        return None
    mask = values.get("attention_mask")
    plain = isinstance(mask, Tensor) and mask.shape == ids.shape
    return Inputs(
        ids=ids,
        attended=mask if plain else None,
        mask_is_odd=mask is not None and not plain,
        cached=_cached(values),
    )


def _is_ids(value: Any) -> bool:
    whole = isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
    return whole and value.ndim == 2


def _cached(values: Mapping[str, Any]) -> int | None:
    named = (value for name, value in values.items() if "cache" in name or name.startswith("past"))
    cache = next((v for v in named if v is not None and not isinstance(v, bool | Tensor)), None)
    if cache is None:
        return None
    ask = next((found for name in _LENGTH if callable(found := getattr(cache, name, None))), None)
    return -1 if ask is None else int(ask())
