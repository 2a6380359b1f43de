"""What this process holds of a weight that several processes may share.

FSDP leaves a local part in the weight itself. DeepSpeed steps another tensor than the model's: a
float32 copy, split over the processes, of which the model's weight is a rounded copy (ZeRO-3 leaves
that one empty between passes). What a step did is read where the step is done; a weight is moved
where passes read it. Nothing is put together from parts but numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatline.live import ranks

SHARE_TO_COPY = 0.25
"""Of the memory that a device has free."""


def elements(weight: Tensor) -> int:
    """Of the whole weight, wherever it is."""
    return int(getattr(weight, "ds_numel", weight.numel()))


def rows(weight: Tensor) -> int:
    """Of the whole weight; ZeRO-3 shows an empty one."""
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def held(weight: Tensor) -> Tensor:
    """The part that this process steps; empty if others step all of it."""
    if hasattr(weight, "_z3_optimizer"):  # ZeRO-3, once the optimizer is there
        return _detached(weight._z3_optimizer.get_local_fp32_param(weight), weight)
    if hasattr(weight, "ds_tensor"):
        return weight.ds_tensor.detach()  # type: ignore[no-any-return]
    if hasattr(weight, "_hp_mapping"):  # ZeRO-1 and ZeRO-2
        return _detached(getattr(weight._hp_mapping, "hp_fragment", None), weight)
    local = weight.detach()
    return local.to_local() if hasattr(local, "to_local") else local


def read(weight: Tensor) -> Tensor:
    """The part of it that this process gives to a pass."""
    if hasattr(weight, "ds_tensor"):
        return weight.ds_tensor.detach()  # type: ignore[no-any-return]
    local = weight.detach()
    return local.to_local() if hasattr(local, "to_local") else local


def parts(weight: Tensor) -> list[Tensor]:
    """All that a step or a move can change of it here."""
    both = (read(weight), held(weight))
    return list({part.data_ptr(): part for part in both if part.numel()}.values())


def at_rest(model: Any) -> None:
    """Every weight in its parts again: a pass may leave some of them put together, which FSDP then
    shows in place of the parts, and from which passes would go on to read."""
    for module in model.modules():
        if callable(getattr(module, "reshard", None)):
            module.reshard()
    for weight in model.parameters():
        if hasattr(weight, "ds_tensor") and weight.numel():
            weight.ds_active_sub_modules.clear()  # what waits for a backward pass that never came
            weight.partition()


def keeps_order(optimizer: Any) -> list[Any]:
    """What ZeRO-3 notes about the modules outside of them: their hooks, and their numbers in the
    order in which they run. TRL gives both again around each sampling."""
    offload = getattr(optimizer, "parameter_offload", None)
    return [] if offload is None else [offload, offload.get_param_coordinator()]


def named(model: Any) -> list[tuple[str, Tensor]]:
    """The trainable weights, at rest."""
    at_rest(model)
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the parts that are held here. They stay on the device where most of its free memory
    is left to the measurements, for the way to the host and back is slow; else they go there."""
    own = [read(tensor) for tensor in tensors]
    near = _room_for(own)
    return [part.clone() if near else part.to("cpu", copy=True) for part in own]


def _room_for(parts: Sequence[Tensor]) -> bool:
    device = next((part.device for part in parts if part.is_cuda), None)
    if device is None:
        return True
    needed = sum(part.nbytes for part in parts)
    return needed < SHARE_TO_COPY * torch.cuda.mem_get_info(device)[0]


def gradient_copies(model: Any) -> dict[str, Tensor]:
    """By the name of a weight; those without a gradient are absent."""
    found = {name: weight.grad for name, weight in named(model) if weight.grad is not None}
    return dict(zip(found, copies(list(found.values())), strict=True))


def give_gradients(model: Any, gradients: Mapping[str, Tensor]) -> None:
    """Copies of these parts as the gradients of the weights, and no others."""
    for name, weight in named(model):
        part = gradients.get(name)
        weight.grad = None if part is None else like(part.clone(), weight)


def like(part: Tensor | None, weight: Tensor) -> Tensor | None:
    """A part of a tensor that is split as the weight is, as that tensor."""
    if part is None:
        return None
    local = part.to(read(weight).device)
    if not hasattr(weight, "to_local"):
        return local
    from torch.distributed.tensor import DTensor

    assert isinstance(weight, DTensor)
    mesh, where = weight.device_mesh, weight.placements
    found: Tensor = DTensor.from_local(
        local, mesh, where, shape=weight.shape, stride=weight.stride()
    )
    return found


def whole(tensor: Tensor | None, weight: Tensor) -> Tensor | None:
    """All of it, put together in every process: one tensor at a time."""
    if tensor is not None and hasattr(weight, "to_local") and not hasattr(tensor, "to_local"):
        tensor = like(tensor, weight)
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[union-attr]


def totals(values: Sequence[float], weights: Sequence[Tensor]) -> list[float]:
    """Sums over whole weights from sums over what this process holds of each."""
    shared = [is_shared(weight) for weight in weights]
    whole = iter(ranks.summed([v for v, split in zip(values, shared, strict=True) if split]))
    return [next(whole) if split else v for v, split in zip(values, shared, strict=True)]


def is_part(weight: Tensor) -> bool:
    """Whether other processes hold the rest of it."""
    return held(weight).numel() < elements(weight)


def is_shared(weight: Tensor) -> bool:
    """Whether an optimizer may hold it under another identity."""
    return any(hasattr(weight, name) for name in ("ds_numel", "_hp_mapping", "to_local"))


def steps_in_backward(trainer: Any) -> bool:
    """DeepSpeed's last backward pass also steps: nothing can be read between the two."""
    return bool(getattr(trainer, "is_deepspeed_enabled", False))


def _detached(found: Tensor | None, weight: Tensor) -> Tensor:
    return torch.empty(0, device=weight.device) if found is None else found.detach()
