"""The settings of a run under one set of names, whatever trainer it used; None where unknown."""

from collections.abc import Mapping
from typing import Any

from flatline.errors import ConfigError

SETTINGS = (
    "num_generations",
    "beta",
    "loss_type",
    "scale_rewards",
    "num_iterations",
    "epsilon",
    "epsilon_high",
    "delta",
    "importance_sampling_level",
    "vllm_importance_sampling_correction",
    "temperature",
    "loss_temperature",
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
    "batches_ahead",
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
    "tools",
    "reward_weights",
    "multi_objective_aggregation",
    "dropout",
    "distinct_prompts",
    "prompt_texts",
    "algorithm",
    "correct",
    "gold",
    "best_model_by",
)
"""`tools` is how many a completion may call; with none, and no player of somebody's own, it is one
turn. `lora` is null or a dict of r, alpha, dropout and targets. `precision` is that of the products
in the trainer's passes: `float32`, `tf32`, `float16` or `bfloat16`. `lr_scheduler_type` is `given`
where the user made the schedule. `reward_weights` are by the name of the reward function, as asked
for; null where two have one name. `dropout` is the largest in the model, `distinct_prompts` how
many prompts the data has, by their ids where it has any, and `prompt_texts` how many of them differ
in what the model is shown; null where that is more than a text. `algorithm` is `grpo` or `rloo`.
`correct` is the part of the reward and `gold` the column of the dataset that, as the user says,
tell which answers are right. `loss_temperature` is what the loss divides logits by, where it does
not take `temperature`. `best_model_by` is the metric by which the checkpoint is chosen that is
loaded at the end, with `, lowest` or `, highest`; null where the last weights stay. `epsilon_high`
is null where the clip is as wide above as below. The other names are those of TRL."""

NO_NUMBERS = frozenset(
    {
        "loss_type",
        "scale_rewards",
        "importance_sampling_level",
        "lr_scheduler_type",
        "precision",
        "lora",
        "engine",
        "reward_weights",
        "multi_objective_aggregation",
        "algorithm",
        "correct",
        "gold",
        "best_model_by",
    }
)
"""Settings that are text or a dict; all others are numbers or truth values."""


SIGNIFICANT_BITS = {"float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}
"""Bits that a factor of a product keeps, by precision."""
SPACINGS = 4
"""Steps of a logit that two ways through the same sums may lie apart: one at the output, as many
again for each of attention, the layers between and the normaliser. Healthy: at most 1; see
docs/specification.md."""
FINEST = 1e-3
"""Nats that are never asked for less: in float32 the order of a long sum matters more than its last
bit does (healthy: 4e-6 in the lab)."""


def is_half(settings: Mapping[str, Any]) -> bool | None:
    """Whether the trainer multiplies in 16 bits or TF32, which round thousands of times as much as
    float32.

    None where the run does not say. Where `precision` is not known, `bf16` counts alone.
    """
    precision, bf16 = settings.get("precision"), settings.get("bf16")
    if precision is not None:
        return bool(precision != "float32")
    return None if bf16 is None else bool(bf16)


def rounding(settings: Mapping[str, Any]) -> float:
    """Nats by which one log-prob may differ between two shapes of batch by rounding alone: a few
    spacings of numbers from 16 to 32, where logits lie. Unknown precision counts as bfloat16."""
    coarse = "float32" if is_half(settings) is False else "bfloat16"
    bits = SIGNIFICANT_BITS.get(settings.get("precision") or coarse, SIGNIFICANT_BITS[coarse])
    return max(FINEST, SPACINGS * 2.0 ** (5 - bits))


def refuse_unknown(settings: Mapping[str, Any], what: str) -> None:
    """Settings by other names would be kept and never read."""
    unknown = sorted(settings.keys() - set(SETTINGS))
    if unknown:
        raise ConfigError(f"{what} has no {', '.join(unknown)}.\nThere are: {', '.join(SETTINGS)}.")
