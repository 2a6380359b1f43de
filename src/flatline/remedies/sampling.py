"""What is sampled: prompts through their template, with the weights that are trained, as asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from flatline.errors import ConfigError
from flatline.live.hooks import Patch, nested_models
from flatline.live.trl.settings import stop_ids
from flatline.live.verifiers.attach import is_of_verifiers
from flatline.remedies.base import Tally, Undo
from flatline.remedies.served import tokens_of_the_server
from flatline.remedies.stock import own_method
from flatline.spec.completions import said
from flatline.spec.prompts import prompt_ids

COMPLETION_IDS, TEXTS = 1, 3
"""Where TRL's `_generate` returns what was drawn, and the same as text."""


def prompts_through_the_template(trainer: Any, tally: Tally) -> list[Undo]:
    """Whatever comes to the messages on the way to the template."""
    if is_of_verifiers(trainer):
        return tokens_of_the_server(trainer, tally)
    if not hasattr(trainer, "_tokenize_prompts") or getattr(trainer, "environment_factories", None):
        raise ConfigError(
            "This trainer renders its prompts where no remedy reaches: in an environment, or in a "
            "release of TRL without `_tokenize_prompts`.\nMend the line that the checkup names."
        )
    tokenizer = trainer.processing_class
    options = dict(getattr(trainer.args, "chat_template_kwargs", None) or {})
    if getattr(trainer, "chat_template", None) is not None:
        options["chat_template"] = trainer.chat_template

    def around(generate: Callable[..., Any], prompts: list[Any]) -> Any:
        def tokenize(original: Callable[..., Any], some: list[Any]) -> Any:
            found = original(some)
            if len(some) != len(prompts):
                return found
            right = [prompt_ids(tokenizer, one, trainer.tools, options) for one in prompts]
            off = [list(ids) for ids in found[0]] != right
            tally.count(off)
            return (right, *found[1:]) if off else found

        with Patch(trainer, "_tokenize_prompts", tokenize):
            return generate(prompts)

    return [Patch(trainer, "_generate", around).undo]


def ids_as_sampled(trainer: Any, tally: Tally) -> list[Undo]:
    """The trainer goes on with the ids that `generate` drew, row by row."""
    if getattr(trainer, "tools", None) or getattr(trainer, "rollout_func", None):
        raise ConfigError(
            "With tools or a `rollout_func` a completion is drawn in pieces, and only the code "
            "that puts them together knows them.\nKeep the ids of each piece there: do not "
            "tokenise text that was sampled."
        )
    stops = stop_ids(trainer)

    def around(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _hearing_generate(trainer) as drawn:
            found = generate(*args, **kwargs)
        rows = [said(row, stops) for row in drawn]
        if len(rows) != len(found[COMPLETION_IDS]):
            return found
        off = [list(ids) for ids in found[COMPLETION_IDS]] != rows
        tally.count(off)
        return _with_ids(trainer, found, rows) if off else found

    return [Patch(trainer, "_generate", around).undo]


@contextmanager
def _hearing_generate(trainer: Any) -> Iterator[list[list[int]]]:
    drawn: list[list[int]] = []

    def hear(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        ids_BL = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(found, Tensor) and isinstance(ids_BL, Tensor):
            drawn.extend(found[:, ids_BL.shape[1] :].tolist())
        return found

    with Patch(trainer.accelerator.unwrap_model(trainer.model), "generate", hear):
        yield drawn


def _with_ids(trainer: Any, found: Any, rows: list[list[int]]) -> Any:
    mended = list(found)
    texts = trainer.processing_class.batch_decode(rows, skip_special_tokens=True)
    messages = not isinstance(mended[TEXTS][0], str)
    mended[COMPLETION_IDS] = rows
    mended[TEXTS] = (
        [[{"role": "assistant", "content": text}] for text in texts] if messages else texts
    )
    return tuple(mended)


def sampler_of_trl(trainer: Any, tally: Tally) -> list[Undo]:
    """TRL's own way to draw a turn, with the limits that were asked for."""
    return [*own_method(trainer, "_generate_single_turn", tally), *_as_asked(trainer, tally)]


def _as_asked(trainer: Any, tally: Tally) -> list[Undo]:
    """The settings of `generate`, which a script may have changed since."""
    args, config = trainer.args, getattr(trainer, "generation_config", None)
    if config is None:
        return []
    asked = {
        "max_new_tokens": args.max_completion_length,
        "do_sample": True,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty,
    } | (getattr(args, "generation_kwargs", None) or {})
    before = {name: getattr(config, name) for name in asked if hasattr(config, name)}
    others = {name: asked[name] for name, value in before.items() if value != asked[name]}
    tally.count(bool(others))
    _set(config, others)
    return [lambda: _set(config, before)]


def _set(owner: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def weights_delivered(trainer: Any, tally: Tally) -> list[Undo]:
    """Whichever other model is run while completions are sampled is given the trained weights."""
    policy = trainer.accelerator.unwrap_model(trainer.model)
    own = {id(module) for module in policy.modules()}
    kinds = tuple({type(model) for model in nested_models(policy)[:2]})

    def deliver(module: nn.Module, _: Any) -> None:
        if not isinstance(module, kinds) or id(module) in own or id(module) in delivered:
            return
        delivered.add(id(module))
        delivered.update(id(inner) for inner in module.modules())
        tally.count(_copied(policy, module))

    delivered: set[int] = set()

    def around(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        delivered.clear()
        if getattr(trainer, "use_vllm", False):
            trainer._last_loaded_step = -1  # as if it had never been loaded
        handle = register_module_forward_pre_hook(deliver)
        try:
            return generate(*args, **kwargs)
        finally:
            handle.remove()

    return [Patch(trainer, "_generate", around).undo]


def _copied(policy: nn.Module, sampler: nn.Module) -> bool:
    """Whether anything was to be copied. Adapters are merged for a sampler that has none."""
    held = dict(sampler.named_parameters())
    for model in nested_models(policy)[:2]:
        own = dict(model.named_parameters())
        if own.keys() == held.keys():
            return _copy(own, held)
    if not hasattr(policy, "merge_adapter"):
        return False
    adapted: Any = policy
    adapted.merge_adapter()
    try:
        base = nested_models(policy)[1]
        own = {
            name.replace(".base_layer", ""): weight
            for name, weight in base.named_parameters()
            if "lora_" not in name
        }
        return own.keys() >= held.keys() and _copy(own, held)
    finally:
        adapted.unmerge_adapter()


@torch.no_grad()
def _copy(own: dict[str, Any], held: dict[str, Any]) -> bool:
    changed = False
    for name, weight in held.items():
        if not torch.equal(weight, own[name].to(weight)):
            weight.copy_(own[name])
            changed = True
    return changed
