"""What a user of TRL asked for: the arguments, never what the trainer made of them."""

from collections.abc import Mapping
from typing import Any

import torch

from flatline.live.trl.settings import ALGORITHMS, RLOO, algorithm_of
from flatline.live.where.package import TRL, library_of
from flatline.spec import Asked, NotSpecified
from flatline.spec.numerics import TOLERANCE, Tolerance

_BESIDES = (
    ("use_adaptive_entropy", False, "an adaptive entropy bonus"),
    ("use_liger_kernel", False, "a fused loss"),
)
"""Arguments that change the loss and are not specified: name, value without effect, in words."""


def refuse_other_trainers(trainer: Any, inputs: Mapping[str, Any]) -> None:
    """GRPO, RLOO and GMPO on text are specified."""
    kinds = [kind for kind in type(trainer).__mro__ if library_of(kind.__module__) == TRL]
    if not kinds or kinds[0].__name__ not in ALGORITHMS:
        raise NotSpecified(f"a step of {(kinds or [type(trainer)])[0].__name__}")
    if hasattr(trainer.processing_class, "tokenizer") or "pixel_values" in inputs:
        raise NotSpecified("a model that is shown pictures")
    if getattr(trainer, "aux_loss_enabled", False):
        raise NotSpecified("a loss that balances experts")


def asked_of(trainer: Any, rows_in_pass: int) -> Asked:
    """The arguments as the specification calls them."""
    args, algorithm = trainer.args, algorithm_of(trainer)
    high = getattr(args, "epsilon_high", None)
    weights = getattr(args, "reward_weights", None)
    besides = [
        words for name, none, words in _BESIDES if getattr(args, name, none) not in (none, None, 0)
    ]
    besides += _together(args, algorithm)
    return Asked(
        group=args.num_generations,
        passes=args.gradient_accumulation_steps,
        rows_in_pass=rows_in_pass,
        passes_in_generation=args.steps_per_generation,
        iterations=args.num_iterations,
        longest=args.max_completion_length,
        temperature=args.temperature,
        reward_weights=None if weights is None else tuple(weights),
        mask_cut=args.mask_truncated_completions,
        **(_of_rloo(args) if algorithm == RLOO else _of_grpo(args, algorithm)),
        clip_low=args.epsilon,
        clip_high=args.epsilon if high is None else high,
        ceiling=getattr(args, "delta", None),
        beta=args.beta,
        entropy_share=getattr(args, "top_entropy_quantile", 1.0),
        entropy_bonus=getattr(args, "entropy_coef", 0.0) or 0.0,
        drift=getattr(args, "off_policy_mask_threshold", None),
        correction=_correction(args),
        learning_rate=args.learning_rate,
        schedule=_schedule(args),
        warmup=int(args.get_warmup_steps(args.max_steps)) if args.max_steps > 0 else 0,
        steps=args.max_steps,
        largest_norm=args.max_grad_norm or 0.0,
        optimizer=_optimizer(args),
        betas=(args.adam_beta1, args.adam_beta2),
        epsilon=args.adam_epsilon,
        decay=args.weight_decay,
        besides=tuple(besides),
    )


def _of_grpo(args: Any, algorithm: str | None) -> dict[str, Any]:
    """GMPO has one loss of its own, whatever `loss_type` says, and its KL is never corrected."""
    corrected = bool(getattr(args, "use_bias_correction_kl", False))
    names = ("sapo_temperature_pos", "sapo_temperature_neg")
    softness = [getattr(args, name, None) for name in names]
    return {
        "aggregation": getattr(args, "multi_objective_aggregation", "sum_then_normalize"),
        "scale": _scale(args.scale_rewards),
        "loss": "gmpo" if algorithm == "gmpo" else args.loss_type,
        "level": _level(args),
        **({} if None in softness else {"softness": tuple(softness)}),
        **({"gamma": _gamma(args)} if args.loss_type == "vespo" else {}),
        "corrected_kl": corrected and algorithm != "gmpo",
    }


def _level(args: Any) -> str:
    """VESPO takes the product of a completion's ratios, whatever the argument says."""
    whole = getattr(args, "loss_type", "") == "vespo"
    return "product" if whole else str(getattr(args, "importance_sampling_level", "token"))


def _gamma(args: Any) -> tuple[tuple[float, float], tuple[float, float]]:
    return (
        (args.vespo_k_pos, args.vespo_lambda_pos),
        (args.vespo_k_neg, args.vespo_lambda_neg),
    )


def _correction(args: Any) -> tuple[str, float | None, float | None] | None:
    """Where vLLM samples. Releases that have one bound call it `cap`."""
    if not (args.use_vllm and getattr(args, "vllm_importance_sampling_correction", False)):
        return None
    most = getattr(args, "vllm_importance_sampling_cap", None)
    return (
        getattr(args, "vllm_importance_sampling_mode", "token_truncate"),
        getattr(args, "vllm_importance_sampling_clip_min", None),
        getattr(args, "vllm_importance_sampling_clip_max", most),
    )


def _together(args: Any, algorithm: str | None) -> list[str]:
    """What is specified by itself and not together."""
    corrected, drift = _correction(args), getattr(args, "off_policy_mask_threshold", None)
    bonus, loss = getattr(args, "entropy_coef", 0.0), getattr(args, "loss_type", "")
    gspo_token, kl = _level(args) == "sequence_token", getattr(args, "use_bias_correction_kl", 0)
    pairs = {
        "GMPO with anything beside it": algorithm == "gmpo" and (corrected or drift or bonus),
        "GSPO-token with anything beside it": gspo_token and (drift or bonus or kl),
        "off-policy masking of what vLLM samples": args.use_vllm and drift is not None,
        "vespo of what vLLM samples": corrected and loss == "vespo",
    }
    return [words for words, asked in pairs.items() if asked]


def _of_rloo(args: Any) -> dict[str, Any]:
    """A completion is one act: one ratio, one loss, and its KL in its reward."""
    limits = args.reward_clip_range
    return {
        "reward_range": None if limits is None else tuple(limits),
        "baseline": "others",
        "scale": "advantages" if args.normalize_advantages else "none",
        "loss": "rloo",
        "level": "product",
        "kl_place": "reward",
    }


def tolerance_of(trainer: Any) -> Tolerance:
    """By what the trainer multiplies in."""
    return TOLERANCE[precision_of(trainer)]


def precision_of(trainer: Any) -> str:
    """`fp32`, `tf32`, `fp16` or `bf16`: the coarsest that a product may be rounded to."""
    held = {weight.dtype for weight in trainer.model.parameters()}
    mixed = str(getattr(trainer.accelerator, "mixed_precision", "no"))
    plain = {torch.float64, torch.float32, torch.float16}
    if held - plain or mixed == "bf16":  # quantised weights are multiplied in bf16 at best
        return "bf16"
    if torch.float16 in held or mixed == "fp16":
        return "fp16"
    on_gpu = trainer.accelerator.device.type == "cuda"
    return "tf32" if on_gpu and torch.backends.cuda.matmul.allow_tf32 else "fp32"


def _plain(value: Any) -> str:
    """Enums of transformers as their text."""
    return str(getattr(value, "value", value))


def _scale(value: Any) -> str:
    """Older releases say True for the group and False for none."""
    return {"True": "group", "False": "none"}.get(str(value), str(value))


def _schedule(args: Any) -> str:
    name = _plain(args.lr_scheduler_type)
    return f"{name} with options" if getattr(args, "lr_scheduler_kwargs", None) else name


def _optimizer(args: Any) -> str:
    name = _plain(args.optim)
    plain = name in ("adamw_torch", "adamw_torch_fused") and not getattr(args, "optim_args", None)
    return "adamw" if plain else name
