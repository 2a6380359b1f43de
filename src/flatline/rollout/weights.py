"""The sampler's own copy of the weights, as an inference server has one.

The trainer's weights reach the copy by an explicit delivery, which counts up a version. Every
rollout records the version that sampled it, so a delivery that never happened, came late or carried
the wrong weights can be seen and proved.

LoRA adapters are added to the weights on the way (W + scale * B A, in fp32, aside): the trainer's
own tensors are never merged or unmerged. Tensors that are one in the trainer are one in the copy.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flatline.errors import ModelError


class WeightCopy:
    """A model of its own to sample from. It starts with the source's weights, as version 0."""

    def __init__(self, model: Any) -> None:
        source = _base(model)
        config = copy.deepcopy(source.config)
        with torch.device("meta"):
            self.model = type(source)._from_config(config)
        self.model.generation_config = copy.deepcopy(getattr(source, "generation_config", None))
        self.version = 0
        self._tensors: dict[str, Tensor] = {}
        self._build(source)
        self.model.requires_grad_(False).eval()
        self._copy_from(source)

    def deliver(self, source: Any) -> int:
        """Take over the weights of the trainer's model; the new version."""
        self._copy_from(_base(source))
        self.version += 1
        return self.version

    def _build(self, source: nn.Module) -> None:
        """Give every name a tensor; names that share one in the source share one here."""
        shared: dict[tuple[int, int], Tensor] = {}
        for name, origin in _tensors(source):
            tensor = shared.setdefault(origin.identity, torch.empty_like(origin.tensor))
            self._tensors[name] = tensor
            path, _, leaf = name.rpartition(".")
            owner = self.model.get_submodule(path)
            if leaf in owner._parameters:
                owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
            else:
                owner._buffers[leaf] = tensor
        left = [*self.model.named_parameters(), *self.model.named_buffers()]
        missing = [name for name, tensor in left if tensor.is_meta]
        if missing:
            raise ModelError(
                f"{type(source).__name__} does not hold {', '.join(missing[:3])}, which its "
                "architecture needs.\nA copy of it could not be used for sampling.\n"
                "Sample from the live model instead."
            )

    @torch.no_grad()
    def _copy_from(self, source: nn.Module) -> None:
        origins = dict(_tensors(source))
        odd = set(origins) ^ set(self._tensors)
        odd |= {n for n in set(origins) - odd if origins[n].tensor.shape != self._tensors[n].shape}
        if odd:
            raise ModelError(
                f"{len(odd)} weights do not match the sampler's copy, e.g. {min(odd)!r}.\n"
                "The copy would be a mixture of two models.\n"
                "Deliver from the model that the copy was made of, with sharded weights gathered."
            )
        for name, origin in origins.items():
            self._tensors[name].copy_(origin.value())


class _Origin(NamedTuple):
    """Where a tensor of the copy comes from."""

    tensor: Tensor
    identity: tuple[int, int]
    """Equal for two names only if they always hold the same values."""
    value: Callable[[], Tensor]


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _tensors(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, _Origin]]:
    """Every parameter and buffer under the name it has without adapters."""
    if hasattr(module, "original_module"):
        yield from _tensors(_saved_module(module), prefix)
        return
    adapted = hasattr(module, "base_layer")
    layer: nn.Module = module.base_layer if adapted else module  # type: ignore[assignment]
    adds = _adapters(module) if adapted else []
    for name, tensor in [*layer._parameters.items(), *layer._buffers.items()]:
        if tensor is None:
            continue
        if adds and name == "weight":
            yield prefix + name, _merged(module, tensor, adds)
        else:
            yield prefix + name, _Origin(tensor, (id(tensor), 0), tensor.detach)
    for name, child in layer._modules.items():
        if child is not None:
            yield from _tensors(child, f"{prefix}{name}.")


def _merged(module: nn.Module, weight: Tensor, adapters: list[str]) -> _Origin:
    def value() -> Tensor:
        total = weight.detach().float()
        for adapter in adapters:
            total = total + _lora_delta(module, adapter)
        return total

    return _Origin(weight, (id(weight), id(module)), value)


def _lora_delta(module: Any, adapter: str) -> Tensor:
    """scale * B A of one adapter, in the shape of the weight."""
    if adapter in getattr(module, "lora_embedding_A", {}):
        a, b = module.lora_embedding_A[adapter], module.lora_embedding_B[adapter]
        turned = True
    else:
        a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
        turned = module.fan_in_fan_out
    delta: Tensor = (b.detach().float() @ a.detach().float()) * module.scaling[adapter]
    return delta.T if turned else delta


def _adapters(module: Any) -> list[str]:
    """Adapters that the layer adds to its weight when it runs."""
    if module.disable_adapters:
        return []
    held = {*getattr(module, "lora_A", {}), *getattr(module, "lora_embedding_A", {})}
    active = [name for name in module.active_adapters if name in held]
    adds = [name for name in active if name not in module.merged_adapters]
    variants = getattr(module, "lora_variant", {})
    biased = getattr(module, "lora_bias", {})
    plain = isinstance(module.base_layer, nn.Linear | nn.Embedding) or _is_conv1d(module.base_layer)
    odd = [name for name in active if name in variants or biased.get(name)]
    if odd or not plain or not hasattr(module, "lora_A"):
        raise ModelError(
            f"The adapter on a {type(module.base_layer).__name__} is a {type(module).__name__} "
            "that adds more than scale * B A to a weight.\nThe copy would lack the rest.\n"
            "Use plain LoRA on linear layers (no DoRA, no bias), or sample from the live model."
        )
    return adds


def _is_conv1d(layer: nn.Module) -> bool:
    """GPT-2's linear layer, whose weight is turned."""
    return type(layer).__name__ == "Conv1D"


def _saved_module(wrapper: Any) -> nn.Module:
    """What a PEFT wrapper runs: the trained copy of a module, or the original."""
    if not hasattr(wrapper, "modules_to_save"):
        raise ModelError(
            f"The adapter holds a {type(wrapper).__name__}, which flatline cannot copy.\n"
            "Use `modules_to_save`, or sample from the live model."
        )
    active = [name for name in wrapper.active_adapters if name in wrapper.modules_to_save]
    if wrapper.disable_adapters or not active:
        return wrapper.original_module  # type: ignore[no-any-return]
    return wrapper.modules_to_save[active[0]]  # type: ignore[no-any-return]
