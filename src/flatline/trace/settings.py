"""The settings of a run under one set of names, whatever trainer it used; None where unknown."""

from collections.abc import Mapping
from typing import Any

SETTINGS = (
    "num_generations",
    "beta",
    "loss_type",
    "scale_rewards",
    "num_iterations",
    "epsilon",
    "importance_sampling_level",
    "vllm_importance_sampling_correction",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "max_steps",
    "max_completion_length",
    "mask_truncated_completions",
    "per_device_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "world_size",
    "shuffle_dataset",
    "seed",
    "disable_dropout",
    "bf16",
    "precision",
    "gradient_checkpointing",
    "lora",
    "engine",
    "dataset_size",
    "prompts_per_step",
)
"""`lora` is null or a dict of r, alpha, dropout and targets. `precision` is that of the
trainer's passes, as torch names it. The other names are those of TRL."""

NO_NUMBERS = frozenset(
    {
        "loss_type",
        "scale_rewards",
        "importance_sampling_level",
        "lr_scheduler_type",
        "precision",
        "lora",
        "engine",
    }
)
"""Settings that are text or a dict; all others are numbers or truth values."""


def is_half(settings: Mapping[str, Any]) -> bool | None:
    """Whether the trainer computes in 16 bits, which round a thousand times as much as float32.

    None where the run does not say. Where `precision` is not known, `bf16` counts alone.
    """
    precision, bf16 = settings.get("precision"), settings.get("bf16")
    if precision is not None:
        return bool(precision != "float32")
    return None if bf16 is None else bool(bf16)
