"""A user's own GRPO script on stock TRL, as people write them, in several healthy settings.

Nothing of flatline's training is in it: TRL samples with its own `generate`, two plain functions
pay, and the lab policy stands for the model. `foreign_faults.py` plants defects in it.
"""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from flatline.tasks import make_task
from flatline.training.lab.tokenizer import checkpoint_folder

NUMBER = re.compile(r"####\s*(-?[\d,\.]+)")
Reward = Callable[..., list[float]]


def correct(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 where the last number behind #### is the answer."""
    found = [NUMBER.findall(one[0]["content"]) for one in completions]
    return [
        float(bool(numbers) and numbers[-1].replace(",", "").rstrip(".") == gold)
        for numbers, gold in zip(found, answer, strict=True)
    ]


def brief(completions: list[Any], **_: Any) -> list[float]:
    """Up to 0.2 for a short answer."""
    return [0.2 / (1 + len(one[0]["content"]) / 100) for one in completions]


@dataclass
class Script:
    """Everything that a user would write; a fault changes it before the trainer is made."""

    asked: dict[str, Any]
    lora: bool = True
    rewards: list[Reward] = field(default_factory=lambda: [correct, brief])
    rows: list[dict[str, Any]] = field(default_factory=list)
    trainer: type[GRPOTrainer] | type[RLOOTrainer] = GRPOTrainer
    dtype: torch.dtype = torch.float32
    callbacks: list[TrainerCallback] = field(default_factory=list)


ADAPTED: str | list[str] = "all-linear"
"""Layers that get an adapter where there are any."""

ASKED: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 64,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "beta": 0.04,
    "loss_type": "grpo",
    "scale_rewards": "group",
    "temperature": 1.0,
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
    "max_steps": 20,
    "seed": 7,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
}

HEALTHY: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "bnpo": {"loss_type": "bnpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.0},
    "full": {"lora": False},
    "full-beta-0": {"lora": False, "beta": 0.0, "loss_type": "dapo"},
    "two-iterations": {"num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.3},
    "two-steps-a-generation": {"steps_per_generation": 4, "loss_type": "dapo"},
    "two-rewards-weighted": {"reward_weights": [1.0, 0.5]},
    "cut-masked": {"mask_truncated_completions": True, "max_completion_length": 32},
    "cool": {"temperature": 0.7},
    "batch-scaled": {"scale_rewards": "batch"},
    "sequence-level": {"importance_sampling_level": "sequence", "num_iterations": 2},
    "two-sided-clip": {"delta": 1.5, "num_iterations": 2, "loss_type": "bnpo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0, "num_iterations": 2},
    "entropy-quantile": {"top_entropy_quantile": 0.5},
    "plain-kl": {"use_bias_correction_kl": False, "num_iterations": 2},
    "linear-schedule": {"lr_scheduler_type": "linear", "warmup_steps": 2},
    "no-shuffle": {"shuffle_dataset": False},
    "normalize-then-sum": {"multi_objective_aggregation": "normalize_then_sum"},
    # From here on written after the specification.
    "dapo-two-iterations": {"loss_type": "dapo", "num_iterations": 2, "epsilon_high": 0.28},
    "bnpo-full": {"loss_type": "bnpo", "lora": False, "num_iterations": 2},
    "dr_grpo-cut-masked": {
        "loss_type": "dr_grpo",
        "mask_truncated_completions": True,
        "max_completion_length": 32,
        "beta": 0.0,
    },
    "cispo-full": {"loss_type": "cispo", "epsilon_high": 5.0, "lora": False},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
    "gspo": {
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
        "num_iterations": 2,
        "beta": 0.0,
    },
    "top-p": {"top_p": 0.9, "top_k": 20, "temperature": 0.8},
    "decay": {"weight_decay": 0.1, "lora": False},
    "cosine-warm-up": {"lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 0.05},
    "one-pass": {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 16},
    "groups-of-8": {"num_generations": 8},
    "sapo": {"loss_type": "sapo"},
    "vespo": {"loss_type": "vespo", "num_iterations": 2},
    "entropy-bonus": {"entropy_coef": 0.01},
    "off-policy-masked": {"off_policy_mask_threshold": 0.05, "num_iterations": 2},
    "a-generation-a-pass": {"steps_per_generation": 1},
    "checkpointing": {"gradient_checkpointing": True},
    "adafactor": {"optim": "adafactor"},
    "epochs": {"max_steps": -1, "num_train_epochs": 1},
}
"""What healthy users ask for. `lora` is the script's; the rest goes to `GRPOConfig`."""


def script_of(setting: str) -> Script:
    """A healthy script."""
    changes = dict(HEALTHY[setting])
    task = make_task("gsm8k")
    rows = [
        {"prompt": task.messages(problem), "answer": problem.answer}
        for problem in task.load("lab,,train[:64]", split="train")
    ]
    return Script(lora=changes.pop("lora", True), asked=ASKED | changes, rows=rows)


def build(script: Script) -> Any:
    """What the user's script does before `trainer.train()`."""
    folder = str(checkpoint_folder())
    config = RLOOConfig if issubclass(script.trainer, RLOOTrainer) else GRPOConfig
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=ADAPTED, task_type="CAUSAL_LM")
    return script.trainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=script.dtype),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=list(script.rewards),
        args=config(output_dir=tempfile.mkdtemp(prefix="foreign-"), **script.asked),
        train_dataset=Dataset.from_list(script.rows),
        peft_config=lora if script.lora else None,
        callbacks=list(script.callbacks),
    )
