"""A CPU as a platform of verl's: its registry has none."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry

ANSWERS: dict[str, Any] = {
    "is_available": True,
    "device_count": 1,
    "current_device": "cpu",
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "memory_reserved": 0,
    "max_memory_reserved": 0,
    "mem_get_info": (1, 1),
    "get_device_name": "cpu",
}


class Device(ModuleType):
    """`torch.cpu` with the rest of what `torch.cuda` answers."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in ANSWERS and hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return lambda *_, **__: ANSWERS.get(name)


DEVICE = Device("torch.cpu")


class PlatformCPU(PlatformCUDA):
    """One device, which is none."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def is_ipc_supported(self) -> bool:
        return False


def _named_once(begin: Callable[..., Any]) -> Callable[..., Any]:
    """verl asks for `cpu:gloo` and the device's own, which is the same here; torch refuses that."""

    def begun(backend: str | None = None, **kwargs: Any) -> Any:
        return begin("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, **kwargs)

    return begun


def register() -> None:
    """The platform, and verl's FSDP engine for it."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group = _named_once(torch.distributed.init_process_group)
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # there is no device to pin it for
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    kinds = {"model_type": "language_model", "backend": ["fsdp", "fsdp2"], "device": ["cpu"]}
    EngineRegistry.register(**kinds)(FSDPEngineWithLMHead)
