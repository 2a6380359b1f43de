"""LoRA's layers, asked one by one: base(x) + alpha / r B A x (Hu et al., 2021); merged, their
weight is W + alpha / r B A, and W again afterwards.

Policy, sampler and reference are one model with its adapters on or off, so no comparison between
them shows an adapter that adds something else than it should.
"""

import copy
import inspect
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flatline.live.stage_found import StageFound, departs
from flatline.live.where.ranking import Trail
from flatline.live.where.specified import Right, Specified
from flatline.live.where.statements import Statement, statements
from flatline.live.where.tracing import Event, Follower

OTHER_FORMS = ("use_dora", "use_qalora", "alora_invocation_tokens", "arrow_config")
"""Options of PEFT with which a layer is another sum."""
INPUTS = 4
"""Random inputs that a layer is asked for."""
ROUNDINGS = 16
"""Last bits of the layer's output that may be lost: what it adds is seen as a difference."""
ASIDE = 1e-2
"""Share of what is added that may be another."""
FRESH, ENOUGH = 0.2, 256
"""Of so many elements, how far the mean square of a uniform draw may be off, relative."""
ORTHONORMAL = 1e-3
"""How far products of the columns of B may be from 0 and 1, where it was made orthonormal."""
CANCELS = 1e-4
"""Size of B A, in sizes of both, where they were made to cancel."""
ASKED = "init_lora_weights"
"""PEFT's name for how an adapter begins."""
BEGUN = "Before any step the adapter of "
OPENING, MERGED = "The adapter of ", "Merged, the adapter of "
"""How findings of these looks begin."""


class _Layer(NamedTuple):
    name: str
    layer: Any
    scale: float


def judge_adapters(model: Any) -> StageFound | None:
    """None where every plain layer adds what its matrices say, with the weights as they are, or
    where a layer cannot be asked by itself."""
    with suppress(Exception):  # sharded or packed weights are no matrices
        return _made_otherwise(model) or next(
            (found for one in layers(model) if (found := judged(one))), None
        )
    return None


def _made_otherwise(model: Any) -> StageFound | None:
    """None where no layer has one of an adapter's two matrices and not the other, or a B with a
    bias that nobody asked for: random numbers, which a fresh adapter adds to its layer."""
    for name, layer in model.named_modules():
        if not isinstance(getattr(layer, "base_layer", None), nn.Linear):
            continue
        both = [getattr(layer, matrices, ()) for matrices in ("lora_A", "lora_B")]
        for adapter in getattr(layer, "active_adapters", ()):
            has = [adapter in one for one in both]
            if any(has) and not all(has):
                text = f"{OPENING}`{name}` has no {'AB'[has.index(False)]}: it adds nothing."
                return departs("log-probs", text)
            if all(has) and _biased(both[1][adapter], model.peft_config[adapter]):
                text = f"{OPENING}`{name}` has a bias in its B, which `lora_bias` does not ask for."
                return departs("log-probs", text)
    return None


def _biased(b_layer: Any, config: Any) -> bool:
    asked = getattr(config, "lora_bias", False)
    return getattr(b_layer, "bias", None) is not None and not asked


def judge_merging(model: Any) -> StageFound | None:
    """None where merging the first such layer adds its matrices to its weight and unmerging takes
    them off again; the weight is left as it was."""
    with suppress(Exception):
        for one in layers(model):
            wrong = merged_wrongly(one)
            text = f"{MERGED}`{one.name}` is not in the weight as it must be: {wrong} is wrong."
            return departs("delivery", text) if wrong else None
    return None


def judge_beginning(model: Any) -> StageFound | None:
    """None where no fresh adapter adds something: B begins with 0 (Hu et al., 2021). One that was
    trained before may add what it likes, and is no draw of random numbers any more."""
    with suppress(Exception):
        for one in layers(model):
            adapter = one.layer.active_adapters[0]
            if model.peft_config[adapter].init_lora_weights is not True:
                continue
            told = _begun_as(one.layer.lora_A[adapter], one.layer.lora_B[adapter])
            if told:
                text = f"{BEGUN}`{one.name}` begins with {told}; in a fresh one B is 0, so that"
                return departs("log-probs", f"{text} it adds nothing.")
    return None


def _begun_as(a_layer: Any, b_layer: Any) -> str:
    """What a B that nobody has trained was filled with instead of 0; empty where nothing says so:
    no step of training makes its columns orthonormal, or it and A cancel."""
    a, b = a_layer.weight.detach().double(), b_layer.weight.detach().double()
    if b.numel() < ENOUGH or not b.any():
        return ""
    drawn = b * math.sqrt(b_layer.in_features)  # as `nn.Linear` draws it
    if abs(float((3 * drawn.square()).mean()) - 1) < FRESH and float(drawn.abs().max()) <= 1:
        return "random numbers in both of its matrices"
    each = torch.eye(b.shape[1], dtype=b.dtype, device=b.device)
    orthonormal = float((b.T @ b - each).abs().max()) < ORTHONORMAL
    if orthonormal:
        return "a B with orthonormal columns, as from another initialisation"
    cancel = float((b @ a).norm()) <= CANCELS * float(b.norm() * a.norm())
    return "a B that A cancels, as from another initialisation" if cancel else ""


def set_before(model: Any, found: StageFound) -> Iterator[tuple[Statement, str]]:
    """The statements that made an adapter what it is, and their functions: they ran long before the
    step; none where it is the layer's own pass that is wrong."""
    if found.text.startswith(BEGUN):
        yield from _beginning(model)
    elif found.text.startswith(OPENING):
        yield from _made(model)


def _beginning(model: Any) -> Iterator[tuple[Statement, str]]:
    """A layer is made again on a copy. Where what fills B ran, that and what stands beside it; else
    the last condition that was asked about how to begin, and who asked; then all that fills it.
    Where nothing names B's weight, what filled a weight last should have."""
    one = next(layers(model))
    events = _made_again(one, model.peft_config[one.layer.active_adapters[0]])
    method = type(one.layer).reset_lora_parameters
    filling = list(_naming(method.__code__, ("lora_A", "lora_B")))
    known = statements(method.__code__.co_filename)
    around = {line for each, _ in filling for line in each.guards}
    filled = [event for event in events if event.function == method.__qualname__]
    ran = {event.statement for event in filled}
    of_weights = [each for each, _ in filling if _fills(each.source)]
    named_b = [each for each in of_weights if "lora_B" in each.source]
    b = next(iter(named_b or [each for each in reversed(of_weights) if each in ran]), None)
    guards = () if b is None else b.guards
    beside = [event for event in reversed(filled) if event.statement.guards == guards]
    heads = [event for event in reversed(events) if _asks_how(event) or _is_head(event, guards)]
    chosen = sorted(beside, key=lambda event: event.statement is not b)
    for head in [] if beside else heads[:2]:
        within = [event for event in events if head.statement.line in event.statement.guards]
        asker = [] if head.parent is None else [head.parent]
        chosen += [head, *within[:1], *asker]
    yield from ((event.statement, event.function) for event in chosen)
    yield from ((known[line], method.__qualname__) for line in sorted(around))
    yield from filling


def _fills(source: str) -> bool:
    """Whether a statement fills a weight, as `nn.init.zeros_` does."""
    return "_(self.lora_" in source and ".weight" in source


def _asks_how(event: Event) -> bool:
    return event.statement.kind == "If" and ASKED in event.statement.source


def _is_head(event: Event, lines: Collection[int]) -> bool:
    return event.statement.line in lines


def _made_again(one: _Layer, config: Any) -> list[Event]:
    """What runs while such a layer gets its adapter; nothing where a release makes it otherwise."""
    method = type(one.layer).update_layer
    follower, fresh = Follower(method.__code__.co_filename), copy.deepcopy(one.layer)
    names = inspect.signature(method).parameters
    told = {name: getattr(config, name) for name in names if hasattr(config, name)}
    told |= {"config": config} if "config" in names else {}
    with suppress(Exception), follower.following():
        fresh.update_layer(one.layer.active_adapters[0], **told)
    return follower.events


def _made(model: Any) -> Iterator[tuple[Statement, str]]:
    """Where a layer's factor is another than was asked for, or a matrix is missing or has what no
    plain adapter has: the statements that set them."""
    for _, layer in model.named_modules():
        method = getattr(type(layer), "update_layer", None)
        if method is None or not hasattr(layer, "lora_A") or not layer.active_adapters:
            continue
        adapter = layer.active_adapters[0]
        config = model.peft_config[adapter]
        names = _odd(layer, adapter, config)
        scale = next((one.scale for one in layers(model) if one.layer is layer), None)
        if scale is not None and not math.isclose(layer.scaling[adapter], scale):
            names.append("scaling")
        if names and not any(getattr(config, one, None) for one in OTHER_FORMS):
            paths = {("self", f".{name}") for name in names}
            every = _naming(method.__code__, names)
            setting = [one for one in every if paths.intersection(one[0].writes)]
            yield from setting
            yield from _around(setting, method.__code__, missing=len(names) > 1)
            return


def _around(
    setting: Sequence[tuple[Statement, str]], code: CodeType, *, missing: bool
) -> Iterator[tuple[Statement, str]]:
    """The conditions that chose among statements; where one of two things is missing, also what
    stands in front of a statement and behind it, which may have been meant for that."""
    every = list(_naming(code, [""]))
    for one in setting:
        yield from (each for each in every if each[0].line in one[0].guards)
        at = every.index(one)
        yield from every[max(at - 1, 0) : at + 2] if missing else ()


def _odd(layer: Any, adapter: str, config: Any) -> list[str]:
    """Names of the matrices of an adapter of which one is missing, or has a bias that nobody asked
    for."""
    a, b = layer.lora_A, layer.lora_B
    if (adapter in a) != (adapter in b):
        return ["lora_A", "lora_B"]
    if adapter in b and _biased(b[adapter], config):
        return ["lora_B"]
    biased = adapter in a and getattr(a[adapter], "bias", None) is not None
    return ["lora_A"] if biased else []


def _naming(code: CodeType, words: Sequence[str]) -> Iterator[tuple[Statement, str]]:
    """Statements of a function that have one of these words in them."""
    known = statements(code.co_filename)
    lines = sorted({line for _, _, line in code.co_lines() if line in known})
    for one in dict.fromkeys(known[line] for line in lines if line > code.co_firstlineno):
        if any(word in one.source for word in words):
            yield one, code.co_qualname


def merged_wrongly(one: _Layer) -> str:
    """The method of the layer that gives something else than it must; empty for none."""
    layer, weight = one.layer, one.layer.base_layer.weight
    adapter, kept = layer.active_adapters[0], weight.detach().clone()
    added = one.scale * layer.lora_B[adapter].weight @ layer.lora_A[adapter].weight
    lost = ROUNDINGS * torch.finfo(weight.dtype).eps * float(kept.abs().max())

    def other(found: Tensor, expected: Tensor) -> bool:
        return float((found - expected).abs().max()) > ASIDE * float(added.abs().max()) + lost

    try:
        with torch.no_grad():
            if other(layer.get_delta_weight(adapter), added):
                return "get_delta_weight"
            layer.merge()
            if other(weight, kept + added) or adapter not in layer.merged_adapters:
                return "merge"
            layer.unmerge()
            return "unmerge" if other(weight, kept) else ""
    finally:
        layer.merged_adapters.clear()
        weight.data.copy_(kept)


def judged(one: _Layer) -> StageFound | None:
    """None where the layer adds what its matrices say."""
    values = specified(one)
    with torch.no_grad():
        found = one.layer(values["x"]) - values["base"]
    expected = values["added"]
    lost = ROUNDINGS * torch.finfo(found.dtype).eps * float(values["base"].abs().max())
    size = float(expected.abs().max())
    if float((found - expected).abs().max()) <= ASIDE * size + lost or size <= lost:
        return None
    cosine = nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0)
    return departs(
        "log-probs",
        f"{OPENING}`{one.name}` does not add {one.scale:g} B A x to its layer: it adds "
        f"{float(found.norm() / expected.norm()):.3g} times as much (cosine {float(cosine):.3f}).",
    )


def lines(model: Any, found: StageFound, tolerance: float) -> list[Event]:
    """Statements of the layer whose adapter adds something else, the likeliest first."""
    every = layers(model)
    one = next(every) if found.text.startswith(MERGED) else next(x for x in every if judged(x))
    follower = Follower(type(one.layer).forward.__code__.co_filename)
    if found.text.startswith(MERGED):
        with follower.following():
            method = merged_wrongly(one)
        ran = [one for one in follower.events if one.function.endswith(f".{method}")]
        return sorted(ran, key=lambda one: ("weight" not in one.statement.source, -one.number))
    known = specified(one)
    with follower.following(), torch.no_grad():
        wrong = follower.copies.of(one.layer(known["x"]))
    right = [Specified(name, value.double()) for name, value in known.items()]
    trail = Trail(follower.events, Right(right, tolerance))
    return trail.ranked([] if wrong is None else [wrong])


def specified(one: _Layer) -> dict[str, Tensor]:
    """What passes through such a layer for random inputs, and what it must give."""
    adapter = one.layer.active_adapters[0]
    a, b = one.layer.lora_A[adapter].weight, one.layer.lora_B[adapter].weight
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(INPUTS, a.shape[1], generator=draw).to(a)
    with torch.no_grad():
        base, low, high = one.layer.base_layer(x), x @ a.T, x @ a.T @ b.T
    named = {"x": x, "base": base, "A x": low, "B A x": high, "added": one.scale * high}
    named["sum"] = base + one.scale * high
    return {name: value.detach() for name, value in named.items()}


def layers(model: Any) -> Iterator[_Layer]:
    """Linear layers with one plain adapter in force, and what it is to be multiplied with."""
    configs = getattr(model, "peft_config", {})
    for name, layer in model.named_modules():
        on: Sequence[str] = getattr(layer, "active_adapters", ())
        if not isinstance(getattr(layer, "base_layer", None), nn.Linear) or len(on) != 1:
            continue
        config, matrices = configs.get(on[0]), getattr(layer, "lora_A", {})
        if config is None or on[0] not in matrices or layer.disable_adapters or layer.merged:
            continue
        if any(getattr(config, one, None) for one in OTHER_FORMS) or config.alpha_pattern:
            continue
        dropout = layer.lora_dropout[on[0]]
        if dropout.training and getattr(dropout, "p", 0):
            continue
        same = matrices[on[0]].weight.dtype == layer.base_layer.weight.dtype
        if not same or layer.lora_B[on[0]].bias is not None:
            continue
        rank = matrices[on[0]].out_features
        root = math.sqrt(rank) if config.use_rslora else rank
        yield _Layer(name, layer, config.lora_alpha / root)
