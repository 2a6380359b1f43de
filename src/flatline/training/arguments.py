"""A run's config as arguments of TRL and PEFT. Every value that matters is stated, whatever the
default is today: defaults have moved between releases, and a run must not change with them."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from trl import GRPOConfig

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.training.vllm import vllm_arguments


def trl_arguments(config: RunConfig) -> dict[str, Any]:
    """Every value of TRL's config that matters, by TRL's names."""
    steps, epochs = config.length
    return {
        "output_dir": config.output_dir,
        "run_name": config.run_name or Path(config.output_dir).name,
        "report_to": [name.strip() for name in config.report_to.split(",")],
        "seed": config.seed,
        "data_seed": config.seed,
        # sizes
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "steps_per_generation": config.gradient_accumulation_steps,
        "num_generations": config.num_generations,
        "num_iterations": config.num_iterations,
        "max_steps": -1 if steps is None else steps,
        "num_train_epochs": epochs,
        "shuffle_dataset": config.order == "shuffled",
        "max_completion_length": config.max_turns * config.turn_tokens,
        # sampling
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p or None,
        "repetition_penalty": 1.0,
        **vllm_arguments(config),
        # loss
        "loss_type": config.loss_type,
        "beta": config.kl_beta,
        "epsilon": config.epsilon,
        "epsilon_high": None,
        "delta": None,
        "scale_rewards": config.scale_rewards,
        "multi_objective_aggregation": "sum_then_normalize",
        "importance_sampling_level": "sequence" if config.loss_type == "luspo" else "token",
        "mask_truncated_completions": False,
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "off_policy_mask_threshold": None,
        "use_bias_correction_kl": False,
        "sync_ref_model": False,
        "disable_dropout": config.lora_dropout == 0 or not config.peft,
        "cast_lm_head_to_fp32": False,
        # optimizer
        "optim": "adamw_torch",
        "learning_rate": config.rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "warmup_steps": config.warmup_steps,
        "weight_decay": config.weight_decay,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": 1e-8,
        "max_grad_norm": config.max_grad_norm,
        "bf16": config.bf16,
        "fp16": False,
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": config.gradient_checkpointing,
        # logs and checkpoints
        "logging_strategy": "steps",
        "logging_steps": config.logging_steps,
        "logging_first_step": True,
        "log_completions": config.log_completions,
        "num_completions_to_print": 0,  # they go to the log; stdout holds the result
        "save_strategy": "steps" if config.save_steps else "no",
        "save_steps": config.save_steps or 500,
        "save_only_model": False,
        "eval_strategy": "no",
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def trl_config(arguments: dict[str, Any]) -> GRPOConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return GRPOConfig(**arguments)
        except ValueError as error:
            raise ConfigError(f"TRL refuses this configuration: {error}") from error


def lora_config(config: RunConfig) -> LoraConfig:
    targets: str | list[str] = config.lora_targets
    if targets != "all-linear":
        targets = [name.strip() for name in config.lora_targets.split(",")]
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets,
        bias="none",
        use_rslora=False,
        use_dora=False,
        init_lora_weights=True,
        task_type="CAUSAL_LM",
    )


def world_size() -> int:
    """Processes of the run, as the launcher says; TRL's config is not made yet."""
    return int(os.environ.get("WORLD_SIZE", "1"))
