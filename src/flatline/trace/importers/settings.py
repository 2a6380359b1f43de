"""A trainer's configuration in the canonical names of `run.json`, as far as it says so."""

from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.numbers import flat
from flatline.trace.settings import SETTINGS

_ACTOR, _ROLLOUT = "actor_rollout_ref/actor", "actor_rollout_ref/rollout"  # verl
_NEMO = "policy/generation"
_SKYRL, _OPTIM = "generator/sampling_params", "trainer/policy/optimizer_config"

NAMES: dict[str, tuple[str, ...]] = {
    "num_generations": (
        "num_generations",
        f"{_ROLLOUT}/n",
        "grpo/num_generations_per_prompt",  # NeMo-RL
        "generator/n_samples_per_prompt",  # SkyRL
    ),
    "beta": (
        "beta",
        f"{_ACTOR}/kl_loss_coef",
        "loss_fn/reference_policy_kl_penalty",
        "trainer/algorithm/kl_loss_coef",
    ),
    "loss_type": ("loss_type",),
    "scale_rewards": ("scale_rewards",),
    "num_iterations": (
        "num_iterations",
        f"{_ACTOR}/ppo_epochs",
        "trainer/update_epochs_per_batch",
    ),
    "epsilon": (
        "epsilon",
        f"{_ACTOR}/clip_ratio",
        "loss_fn/ratio_clip_min",
        "trainer/algorithm/eps_clip_low",
    ),
    "importance_sampling_level": ("importance_sampling_level",),
    "temperature": (
        "temperature",
        f"{_ROLLOUT}/temperature",
        f"{_NEMO}/temperature",
        f"{_SKYRL}/temperature",
    ),
    "top_p": ("top_p", f"{_ROLLOUT}/top_p", f"{_NEMO}/top_p", f"{_SKYRL}/top_p"),
    "top_k": ("top_k", f"{_ROLLOUT}/top_k", f"{_NEMO}/top_k", f"{_SKYRL}/top_k"),
    "min_p": ("min_p",),
    "repetition_penalty": ("repetition_penalty",),
    "learning_rate": (
        "learning_rate",
        f"{_ACTOR}/optim/lr",
        "policy/optimizer/kwargs/lr",
        f"{_OPTIM}/lr",
    ),
    "lr_scheduler_type": ("lr_scheduler_type",),
    "warmup_steps": ("warmup_steps",),
    "weight_decay": (
        "weight_decay",
        f"{_ACTOR}/optim/weight_decay",
        "policy/optimizer/kwargs/weight_decay",
        f"{_OPTIM}/weight_decay",
    ),
    "max_grad_norm": (
        "max_grad_norm",
        f"{_ACTOR}/grad_clip",
        "policy/max_grad_norm",
        f"{_OPTIM}/max_grad_norm",
    ),
    "max_steps": ("max_steps", "trainer/total_training_steps", "grpo/max_num_steps"),
    "max_completion_length": (
        "max_completion_length",
        "data/max_response_length",
        f"{_SKYRL}/max_generate_length",
    ),
    "mask_truncated_completions": ("mask_truncated_completions",),
    "per_device_batch_size": ("per_device_train_batch_size", "train_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "steps_per_generation": ("steps_per_generation",),
    "world_size": ("world_size",),
    "shuffle_dataset": ("shuffle_dataset",),
    "seed": ("seed", "grpo/seed", "trainer/seed"),
    "disable_dropout": ("disable_dropout",),
    "bf16": ("bf16",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "engine": (f"{_ROLLOUT}/name", f"{_NEMO}/backend"),
    "prompts_per_step": (
        "data/train_batch_size",
        "grpo/num_prompts_per_step",
        "trainer/train_batch_size",
    ),
}
"""Canonical setting -> where TRL, verl, NeMo-RL or SkyRL keep it, nested names joined with `/`."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every canonical setting; None where the configuration does not say."""
    given = flat(dict(config))
    found = {name: _first(given, NAMES.get(name, ())) for name in SETTINGS}
    found["lora"] = _lora(config.get("peft_config"))
    if any(given.get(f"{part}/use_kl_loss") is False for part in (_ACTOR, "trainer/algorithm")):
        found["beta"] = 0.0
    if found["bf16"] is None and isinstance(precision := given.get("policy/precision"), str):
        found["bf16"] = precision == "bfloat16"
    if given.get("fp16") is True or given.get("policy/precision") == "float16":
        found["precision"] = "float16"
    elif given.get("tf32") is True and not found["bf16"]:
        found["precision"] = "tf32"
    if found["max_steps"] == -1:  # transformers: as many as the epochs take
        found["max_steps"] = None
    if isinstance(found["scale_rewards"], bool):  # TRL's older way of saying it
        found["scale_rewards"] = "group" if found["scale_rewards"] else "none"
    if given.get("use_vllm") is True:
        found["engine"] = "vllm"
    return found


def setting_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Canonical setting -> what the configuration itself calls it, where it says."""
    given = flat(dict(config))
    return {
        name: own.replace("/", ".")
        for name, wanted in NAMES.items()
        for own in wanted[::-1]
        if own in given
    }


def _first(given: Mapping[str, Any], wanted: tuple[str, ...]) -> Any:
    """The first that is there and simple: a nested value is no setting of ours."""
    for name in wanted:
        if isinstance(value := given.get(name), str | int | float | bool):
            return value
    return None


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
