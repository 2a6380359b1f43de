"""One of several processes that train a small model together; started by `tests/launched.py`.

Accelerate starts neither FSDP nor DeepSpeed on CPUs. All that keeps them from it is the choice of
the backend, so it is made here: gloo, on this machine's CPU, in the place of NCCL on GPUs.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

ENVIRONMENT = {
    "ddp": {},
    "fsdp2": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    },
    "zero3": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
}


def prepare(kind):
    """Before anything of accelerate is used."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    os.environ |= ENVIRONMENT[kind]
    if kind == "ddp":
        return
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    if kind == "zero3":
        import deepspeed.comm.torch  # noqa: F401

        # It would compile an operator that only makes gathering faster.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def trainer_in(folder, kind, **changes):
    from tests.test_attach import trainer_of

    return trainer_of(folder, per_device_train_batch_size=4, use_cpu=kind == "ddp", **changes)


def fingerprint(trainer):
    """Of all bits that this process holds of weights and of what the optimizer knows of them."""
    from flatline.live.held import at_rest, parts
    from flatline.live.trl.measure.untouched import _optimizer, _state_tensors

    at_rest(trainer.model)
    found = hashlib.sha256()
    own = [part for weight in trainer.model.parameters() for part in parts(weight)]
    optimizer = _optimizer(trainer)
    own += [] if optimizer is None else list(_state_tensors(optimizer))
    for tensor in own:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(local.detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def say(**facts):
    """A line of this process."""
    print(f"SAID {json.dumps(facts)}", flush=True)
