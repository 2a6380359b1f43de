"""Adapters that are merged into the base while the loss is computed.

A merged adapter is part of the base's weights: the forward pass goes past its own matrices, which
get no gradient. PEFT says so of each of its layers.
"""

from typing import Any


def adapter_layers(model: Any) -> list[Any]:
    """The layers that PEFT put into a model."""
    return [layer for layer in model.modules() if hasattr(layer, "merged_adapters")]


def merged_in_training(layers: list[Any]) -> int:
    """How many of them are merged with an adapter that is to be trained."""
    return sum(map(_is_merged, layers))


def _is_merged(layer: Any) -> bool:
    merged = set(layer.merged_adapters)
    return bool(merged) and any(
        weight.requires_grad and not merged.isdisjoint(name.split("."))
        for name, weight in layer.named_parameters()
    )
