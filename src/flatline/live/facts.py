"""What a trace says of any run, whoever trains: versions, commit, adapter, precision."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = ("torch", "trl", "transformers", "peft", "accelerate", "datasets", "vllm", "deepspeed")
_version = cache(version)


def dropout_of(model: Any) -> float:
    """The largest in a model, of layers and of attention."""
    modules = list(model.modules())
    layers = [module.p for module in modules if isinstance(module, torch.nn.Dropout)]
    attention = [getattr(module, "attention_dropout", 0.0) for module in modules]
    return float(max([0.0, *layers, *(p for p in attention if isinstance(p, float))]))


def versions() -> dict[str, str]:
    """Of Python and of the packages that train."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = _version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Of the repository around the working directory."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None


def lora_of(model: Any) -> dict[str, Any] | None:
    """What an adapter was asked to be; None without one."""
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return None
    config = next(iter(adapters.values()))
    targets = getattr(config, "target_modules", None)
    return {
        "r": getattr(config, "r", None),
        "alpha": getattr(config, "lora_alpha", None),
        "dropout": getattr(config, "lora_dropout", None),
        "targets": sorted(targets) if isinstance(targets, set | list | tuple) else targets,
        "starts_at_random": getattr(config, "init_lora_weights", None) is False,
    }


def tf32() -> bool:
    """Whether a GPU rounds the factors of float32 products to 11 bits. Since torch 2.9 a name per
    backend says so, and asking for the older flag may raise."""
    matmul = torch.backends.cuda.matmul
    named = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if named is None else named == "tf32"
