"""Which models the engine can play, and up to which context. What it cannot play is refused."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from flatline.errors import ConfigError, ModelError
from flatline.rollout.kv import SlotCache
from flatline.rollout.table import feed

SELF_CHECK_TOKENS = 6
SELF_CHECK_NATS = 0.05
_MASKS = ("sdpa", "eager")


def max_context_of(model: Any, wanted: int | None) -> int:
    """The wanted context, or all that the model was built for."""
    built_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if wanted is None and built_for is None:
        raise ConfigError(
            "The model's config does not say how long its context is.\n"
            "Give the number of tokens: `--max-context N`."
        )
    if wanted is not None and built_for is not None and wanted > built_for:
        raise ConfigError(
            f"--max-context {wanted} is more than the {built_for} positions that the "
            f"model was built for.\nType `--max-context {built_for}` or less."
        )
    return wanted or int(built_for or 0)


def refuse_virtual_tokens(model: Any) -> None:
    adapters = getattr(model, "peft_config", None) or {}
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        raise ModelError(
            "The model's adapter puts virtual tokens before the prompt.\n"
            "They are no tokens of the vocabulary, so a rollout cannot record them.\n"
            "Use LoRA instead."
        )


def refuse_what_cannot_be_played(model: Any, max_context: int) -> None:
    config = model.config.get_text_config()
    fault = _fault_in_model(model, config)
    if fault:
        raise ModelError(f"{type(model).__name__} cannot be run by flatline: {fault}")
    for what, reach in _reaches(config):
        if max_context > reach:
            raise ModelError(
                f"{type(model).__name__} has {what} of {reach} tokens, and the context is "
                f"{max_context}.\nThe engine's cache keeps every token and would show the model "
                f"more than it was trained to see.\nType `--max-context {reach}` or less."
            )


def _fault_in_model(model: Any, config: Any) -> str | None:
    needed = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep"}
    missing = needed - set(inspect.signature(type(model).forward).parameters)
    kinds = set(getattr(config, "layer_types", None) or [])
    kinds -= {"full_attention", "sliding_attention", "chunked_attention"}
    attention = model.config._attn_implementation
    if model.config.is_encoder_decoder:
        return "it is an encoder-decoder.\nUse a causal language model."
    if getattr(model, "_is_stateful", False) or kinds:
        found = ", ".join(sorted(kinds)) or "a recurrent state"
        return f"it has {found}, which cannot be kept per token.\nUse a model with attention only."
    if missing:
        lacks = ", ".join(sorted(missing))
        return f"its forward takes no {lacks}.\nUse a model of transformers' own."
    if attention not in _MASKS:
        return (
            f"attention {attention!r} takes no mask of its own.\n"
            'Load it with attn_implementation="sdpa".'
        )
    return None


def _reaches(config: Any) -> Iterator[tuple[str, int]]:
    """How far the model's windows and position encodings reach, where that is limited."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if window and (kinds is None or "sliding_attention" in kinds):
        yield "a sliding window", int(window)
    if kinds and "chunked_attention" in kinds:
        yield "attention in chunks", int(config.attention_chunk_size)
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type")
    if kind in ("dynamic", "longrope"):
        built_for = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        # Beyond that, frequencies depend on the longest row of the batch.
        yield f"{kind} position encoding with an original context", int(built_for)


def check_cache(model: Any) -> None:
    """Feed a few tokens in two pieces and compare with a plain forward pass."""
    ids = [i % model.config.get_text_config().vocab_size for i in range(1, SELF_CHECK_TOKENS + 1)]
    plain_1V = model(input_ids=torch.tensor([ids], device=model.device)).logits[:, -1]
    cache = SlotCache(2, capacity=SELF_CHECK_TOKENS)
    feed(model, cache, [ids[:2], ids[:4]], [0, 0])
    cached_2V = feed(model, cache, [ids[2:], ids[4:]], [2, 4])
    plain_1V, cached_2V = (logits.float().log_softmax(-1) for logits in (plain_1V, cached_2V))
    off = float((plain_1V.exp() * (cached_2V - plain_1V).abs()).sum(-1).max())
    if off > SELF_CHECK_NATS:
        raise ModelError(
            f"{type(model).__name__} gives other probabilities with flatline's cache than without "
            f"(off by {off:.3f} nats).\nIts rollouts would not be its own.\n"
            "Use a model whose attention reads nothing but past keys and values."
        )
