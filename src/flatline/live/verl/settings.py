"""verl's configuration in the canonical names of a trace."""

from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.settings import settings_of
from flatline.trace.settings import NO_NUMBERS

LOSS_TYPES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
"""`loss_agg_mode` by TRL's names: over all tokens of the update, over each row, by a constant."""
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of the whole configuration, as `main_ppo` has it, resolved."""
    actor, algorithm = config["actor_rollout_ref"]["actor"], config["algorithm"]
    rollout = config["actor_rollout_ref"]["rollout"]
    found = settings_of(config)
    found |= {
        "algorithm": "grpo" if algorithm.get("adv_estimator") == "grpo" else None,
        "loss_type": LOSS_TYPES.get(actor.get("loss_agg_mode")),
        "scale_rewards": "group" if algorithm.get("norm_adv_by_std_in_grpo", True) else "none",
        "precision": _precision(actor),
        "max_completion_length": rollout.get("response_length"),
        "steps_per_generation": _updates(config),
        "gradient_accumulation_steps": 1,
        "batches_ahead": _ahead(config.get("trainer", {}).get("v1") or {}),
    }
    return {name: value for name, value in found.items() if _fits(name, value)}


def _precision(actor: Mapping[str, Any]) -> str:
    """verl's own default is bfloat16."""
    mixed = (actor.get("fsdp_config") or {}).get("mixed_precision") or {}
    return PRECISIONS.get(mixed.get("param_dtype", "bf16"), "bfloat16")


def _updates(config: Mapping[str, Any]) -> int:
    """Optimizer steps that one generation is good for, in one epoch over it."""
    prompts = config["data"]["train_batch_size"]
    mini = config["actor_rollout_ref"]["actor"].get("ppo_mini_batch_size") or prompts
    return max(1, int(prompts) // int(mini))


def _ahead(v1: Mapping[str, Any]) -> int | None:
    """Versions by which rollouts may be behind, by design."""
    if v1.get("trainer_mode", "sync") == "sync":
        return 0
    allowed: int | None = (v1.get("sampler") or {}).get("max_off_policy_threshold")
    return allowed


def _fits(name: str, value: Any) -> bool:
    return value is None or name in NO_NUMBERS or isinstance(value, int | float)
