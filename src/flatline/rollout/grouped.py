"""Attention of a decoding step, where several query heads share keys and values.

Given a mask, transformers copies keys and values for every query head, at every layer and step: for
a model with 12 query heads and 2 of keys that is six times the cache, written and read. A step has
one query a row, so the heads that share keys can stand in for the queries of one head instead.

On a GPU a kernel of our own reads of each row no more than it has (`flatline.rollout.own_keys`).
The mask is then a number for each row: the keys that it sees.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "flatline_grouped"
PLAIN = ("llama", "mistral", "qwen2", "qwen3")
"""Models whose attention is keys, values and positions, and nothing else."""
_OTHER = ("softcap", "position_bias", "cache")
"""Arguments of attention that is more than keys, values and a mask."""


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    rows, heads, queries, size = query.shape
    shared = key.shape[1]
    if attention_mask is not None and not attention_mask.is_floating_point():
        from flatline.rollout import own_keys

        scale = size**-0.5 if scaling is None else scaling
        return own_keys.attend(query, key, value, attention_mask.flatten(), scale), None
    odd = any(others.get(name) is not None for name in _OTHER)
    if queries > 1 or heads == shared or attention_mask is None or odd:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return output
    grouped = query.reshape(rows, shared, heads // shared, size)
    mixed = scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return mixed.reshape(rows, 1, heads, value.shape[-1]), None


def reads_own_keys(model: Any) -> bool:
    """Whether the kernel of our own can be used."""
    config = model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return bool(
        model.device.type == "cuda"
        and find_spec("triton")
        and model.config._attn_implementation in ("sdpa", NAME)
        and config.model_type in PLAIN
        and size in (16, 32, 64, 128, 256)
    )


AttentionInterface.register(NAME, attention)


@contextmanager
def sharing_keys(model: Any) -> Iterator[None]:
    """Steps inside read every key once. Models without torch's attention keep their own."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    if before == "sdpa":
        config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
