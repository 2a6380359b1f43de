"""A trainer's configuration in the canonical names of `run.json`, as far as it says so."""

from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.numbers import flat
from flatline.trace.settings import SETTINGS

_ACTOR, _ROLLOUT = "actor_rollout_ref/actor", "actor_rollout_ref/rollout"

NAMES: dict[str, tuple[str, ...]] = {
    "num_generations": ("num_generations", f"{_ROLLOUT}/n"),
    "beta": ("beta", f"{_ACTOR}/kl_loss_coef"),
    "loss_type": ("loss_type",),
    "scale_rewards": ("scale_rewards",),
    "num_iterations": ("num_iterations", f"{_ACTOR}/ppo_epochs"),
    "epsilon": ("epsilon", f"{_ACTOR}/clip_ratio"),
    "temperature": ("temperature", f"{_ROLLOUT}/temperature"),
    "top_p": ("top_p", f"{_ROLLOUT}/top_p"),
    "top_k": ("top_k", f"{_ROLLOUT}/top_k"),
    "min_p": ("min_p",),
    "repetition_penalty": ("repetition_penalty",),
    "learning_rate": ("learning_rate", f"{_ACTOR}/optim/lr"),
    "lr_scheduler_type": ("lr_scheduler_type",),
    "warmup_steps": ("warmup_steps",),
    "weight_decay": ("weight_decay", f"{_ACTOR}/optim/weight_decay"),
    "max_grad_norm": ("max_grad_norm", f"{_ACTOR}/grad_clip"),
    "max_steps": ("max_steps", "trainer/total_training_steps"),
    "max_completion_length": ("max_completion_length", "data/max_response_length"),
    "mask_truncated_completions": ("mask_truncated_completions",),
    "per_device_batch_size": ("per_device_train_batch_size", "train_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "steps_per_generation": ("steps_per_generation",),
    "world_size": ("world_size",),
    "shuffle_dataset": ("shuffle_dataset",),
    "seed": ("seed",),
    "disable_dropout": ("disable_dropout",),
    "bf16": ("bf16",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "engine": (f"{_ROLLOUT}/name",),
    "prompts_per_step": ("data/train_batch_size",),
}
"""Canonical setting -> where TRL or verl keeps it, nested names joined with `/`."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every canonical setting; None where the configuration does not say."""
    given = flat(dict(config))
    found = {name: _first(given, NAMES.get(name, ())) for name in SETTINGS}
    found["lora"] = _lora(config.get("peft_config"))
    if given.get(f"{_ACTOR}/use_kl_loss") is False:
        found["beta"] = 0.0
    if found["max_steps"] == -1:  # transformers: as many as the epochs take
        found["max_steps"] = None
    if isinstance(found["scale_rewards"], bool):  # TRL's older way of saying it
        found["scale_rewards"] = "group" if found["scale_rewards"] else "none"
    if given.get("use_vllm") is True:
        found["engine"] = "vllm"
    return found


def _first(given: Mapping[str, Any], wanted: tuple[str, ...]) -> Any:
    """The first that is there and simple: a nested value is no setting of ours."""
    values = (given.get(name) for name in wanted)
    return next((v for v in values if isinstance(v, str | int | float | bool)), None)


def _lora(config: Any) -> dict[str, Any] | None:
    """PEFT's configuration, as transformers logs it: by adapter name or bare."""
    if not isinstance(config, dict):
        return None
    adapter = config.get("default", config)
    if not isinstance(adapter, dict) or "r" not in adapter:
        return None
    return {
        "r": adapter["r"],
        "alpha": adapter.get("lora_alpha"),
        "dropout": adapter.get("lora_dropout"),
        "targets": adapter.get("target_modules"),
    }
