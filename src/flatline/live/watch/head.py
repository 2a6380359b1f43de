"""Where a model that flatline knows nothing of makes its logits, and which of its parts see ids."""

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from flatline.errors import ModelError
from flatline.live.hooks import nested_models

Named = list[tuple[str, nn.Module]]

POSITIONS = "pos"
"""Part of the names under which a table of positions goes."""


def head_of(model: Any, optimizer: Any = None, named: "str | nn.Module | None" = None) -> nn.Module:
    """The module whose output are the logits: as it is `named`, else what the model says, else what
    its parts say, else the one layer that is as wide as a table of tokens, else (where none is) the
    model itself. `optimizer` decides between a policy and what stands beside it."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"`watch` was given a {type(model).__name__}, but needs a torch module.\n"
            "Give the model that the loop trains: `flatline.watch(model, optimizer, run_dir)`."
        )
    if any(hasattr(part, "_orig_mod") for part in model.modules()):
        raise ModelError(
            "This model is compiled, and a hook would change its graph.\n"
            "Watch a few steps without `torch.compile`."
        )
    if named is not None:
        return _as_named(model, named)
    for look in (_of_itself, _of_parts, _called_so, _as_wide_as_tokens):
        found = _trained(look(model), optimizer)
        if len(found) == 1:
            return found[0][1]
        if found:
            raise _several(model, found)
    if not tables_in(model) or hasattr(model, "get_output_embeddings"):
        raise ModelError(
            f"No layer of this {type(model).__name__} makes logits, as far as can be seen: "
            "`get_output_embeddings()` gives none, no part is called `lm_head`, and there is no "
            "token table whose size a layer could match.\n"
            "Which tokens are trained is read from the gradient at the logits.\n"
            f"{_how_to_name(model)}"
        )
    return model


def owners_of(model: nn.Module, head: nn.Module) -> list[nn.Module]:
    """The model and what is inside it around the head, the innermost last: the deepest of these
    that is given token ids is where they are heard, since inputs may be changed on the way down."""
    parts = dict(model.named_modules())
    path = next((name for name, part in parts.items() if part is head), "")
    names = path.split(".") if path else []
    around = [model, *(parts[".".join(names[:at])] for at in range(1, len(names)))]
    return list(dict.fromkeys([*around, *nested_models(around[-1])[1:]]))


def logits_in(output: Any, wide: Set[int]) -> Tensor | None:
    """Of what a head or a whole model returns: itself, what it calls so, or its one float table of
    rows, positions and tokens; `wide` is how many tokens there are, where that is known."""
    if isinstance(output, Tensor):
        parts = [output]
    else:
        named = output.get("logits") if isinstance(output, Mapping) else None
        named = getattr(output, "logits", None) if named is None else named
        values = output.values() if isinstance(output, Mapping) else output
        parts = [named] if named is not None else [*values] if isinstance(values, Iterable) else []
    found = [one for one in parts if isinstance(one, Tensor) and one.is_floating_point()]
    if wide:
        found = [one for one in found if one.ndim == 3 and one.shape[-1] in wide]
    return found[0] if len(found) == 1 else None


def _as_named(model: nn.Module, named: "str | nn.Module") -> nn.Module:
    found = dict(model.named_modules()).get(named) if isinstance(named, str) else named
    if isinstance(found, nn.Module) and any(part is found for part in model.modules()):
        return found
    raise ModelError(
        f"`head={named if isinstance(named, str) else type(named).__name__}` is not part of this "
        f"{type(model).__name__}.\n{_how_to_name(model)}"
    )


def _of_itself(model: nn.Module) -> Named:
    if callable(getattr(model, "get_output_embeddings", None)):
        return _said_by("", model)
    head = getattr(model, "lm_head", None)
    return [("lm_head", head)] if isinstance(head, nn.Module) else []


def _of_parts(model: nn.Module) -> Named:
    """What models inside this one say."""
    return _distinct(pair for name, part in model.named_modules() for pair in _said_by(name, part))


def _said_by(name: str, part: nn.Module) -> Named:
    ask = getattr(part, "get_output_embeddings", None)
    with suppress(Exception):  # of a class of somebody's own, whatever it asks for
        head = ask() if callable(ask) else None
        if isinstance(head, nn.Module):
            return [(f"{name}.get_output_embeddings()".lstrip("."), head)]
    return []


def _called_so(model: nn.Module) -> Named:
    named = model.named_modules()
    return _distinct((name, part) for name, part in named if name.split(".")[-1] == "lm_head")


def _as_wide_as_tokens(model: nn.Module) -> Named:
    """Layers with as many outputs as a table of tokens has rows; one of a block that is repeated
    only where there is no other."""
    wide = tables_in(model)
    tables = nn.Embedding | nn.EmbeddingBag
    fits = _distinct(
        (name, part)
        for name, part in model.named_modules()
        if not isinstance(part, tables) and _outputs(part) in wide
    )
    once = [(name, part) for name, part in fits if not any(map(str.isdigit, name.split(".")))]
    return once or fits


def tables_in(model: nn.Module) -> set[int]:
    """How many rows the tables have that tokens are looked up in."""
    found = [(n, p) for n, p in model.named_modules() if isinstance(p, nn.Embedding)]
    tokens = [part for name, part in found if POSITIONS not in name.split(".")[-1].lower()]
    return {part.num_embeddings for part in tokens or [part for _, part in found]}


def _outputs(part: nn.Module) -> int | None:
    """Of a layer that multiplies by a matrix of its own."""
    weight = getattr(part, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 else None


def _distinct(pairs: Iterable[tuple[str, nn.Module]]) -> Named:
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, part in pairs:
        found.setdefault(id(part), (name, part))
    return list(found.values())


def _trained(found: Named, optimizer: Any) -> Named:
    """Of several, those that the optimizer trains: not a reference, nor a reward model."""
    if len(found) < 2 or optimizer is None:
        return found
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    own = [pair for pair in found if any(id(weight) in held for weight in pair[1].parameters())]
    return own or found


def _several(model: nn.Module, found: Named) -> ModelError:
    names = ", ".join(f"`{name}`" for name, _ in found)
    return ModelError(
        f"A {type(model).__name__} has several layers that may make its logits: {names}.\n"
        "Which tokens are trained is read from the gradient at the logits, and must be read at "
        "the right place.\n"
        "Name it: `flatline.watch(model, optimizer, run_dir, head=...)` takes the module or its "
        "name."
    )


def _how_to_name(model: nn.Module) -> str:
    """What to type, with the names of the layers that could be meant."""
    last = [name for name, part in model.named_modules() if name and _outputs(part) is not None]
    some = f" Layers here: {', '.join(f'`{name}`' for name in last[-6:])}." if last else ""
    return (
        "Name the layer: `flatline.watch(model, optimizer, run_dir, head=...)` takes the module or "
        f"its name.{some}"
    )
