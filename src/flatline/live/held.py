"""What this process holds of a weight that several processes may share.

FSDP leaves a local part in the weight itself. DeepSpeed steps another tensor than the model's: a
float32 copy, split over the processes, of which the model's weight is a rounded copy (ZeRO-3 leaves
that one empty between passes). What a step did is read where the step is done.
"""

from typing import Any

import torch
from torch import Tensor


def elements(weight: Tensor) -> int:
    """Of the whole weight, wherever it is."""
    return int(getattr(weight, "ds_numel", weight.numel()))


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
