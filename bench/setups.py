"""Healthy setups: what a user might well train with, and learn.

Thresholds were set while looking at CALIBRATION, so its silence proves little. HELD_OUT is every
variation on every task, with LoRA and with all weights in turn: nobody looked at it before the
thresholds stood, and false alarms are counted there. A setup that calibration has too, but for its
seed, is not one that nobody looked at: it is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatline.config import LAB_RATES, RunConfig

Changes = dict[str, Any]

CALIBRATION: dict[str, Changes] = {
    "lora": {"seed": 10},
    "lora-beta": {"kl_beta": 0.04, "seed": 11},
    "full": {"peft": False, "seed": 12},
    "full-beta": {"peft": False, "kl_beta": 0.04, "seed": 13},
    "dr-grpo": {"loss_type": "dr_grpo", "seed": 14},
    "bnpo": {"loss_type": "bnpo", "seed": 15},
    "dapo-full": {"loss_type": "dapo", "peft": False, "seed": 16},
    "groups-of-4": {"num_generations": 4, "seed": 17},
    "groups-of-16": {"num_generations": 16, "seed": 18},
    "small-steps": {"batch_size": 32, "seed": 19},
    "accumulated": {"batch_size": 16, "gradient_accumulation_steps": 4, "seed": 20},
    "cool": {"temperature": 0.7, "seed": 21},
    "warm": {"temperature": 1.2, "seed": 22},
    "slow-rate": {"learning_rate": 1e-3, "seed": 23},
    "fast-rate": {"learning_rate": 5e-3, "seed": 24},
    "rank-2": {"lora_r": 2, "lora_alpha": 4, "seed": 25},
    "rank-32": {"lora_r": 32, "lora_alpha": 64, "learning_rate": 2e-3, "seed": 26},
    "two-passes": {"num_iterations": 2, "learning_rate": 2e-3, "seed": 27},
    "unscaled": {"scale_rewards": "none", "seed": 28},
    "batch-scaled": {"scale_rewards": "batch", "kl_beta": 0.02, "seed": 29},
    "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 3, "seed": 30},
    "golden": {"retriever": "golden", "seed": 31},
    "toolmath": {"task": "toolmath", "seed": 32},
    "toolmath-full-beta": {"task": "toolmath", "peft": False, "kl_beta": 0.04, "seed": 33},
    "gsm8k": {"task": "gsm8k", "learning_rate": 1e-3, "seed": 34},
    "gsm8k-full": {"task": "gsm8k", "peft": False, "learning_rate": 3e-4, "seed": 35},
}
"""The setups that thresholds were set on (docs/hypotheses.md)."""

_TASKS = ("musique", "toolmath", "gsm8k")
_RATES = {"musique": LAB_RATES, "toolmath": LAB_RATES, "gsm8k": {"lora": 1e-3, "full": 3e-4}}
"""Right or wrong, and nothing between: gsm8k has twice the noise, and wants a lower rate."""
_RATE = "rate"
"""Not a setting: the usual learning rate times this."""
_VARIATIONS: dict[str, Changes] = {
    "plain": {},
    "beta-0.01": {"kl_beta": 0.01},
    "beta-0.06": {"kl_beta": 0.06},
    "dr-grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "bnpo-beta": {"loss_type": "bnpo", "kl_beta": 0.03},
    "dapo": {"loss_type": "dapo"},
    "cispo": {"loss_type": "cispo"},
    "groups-of-4": {"num_generations": 4, "batch_size": 48},
    "groups-of-6": {"num_generations": 6, "batch_size": 48},
    "groups-of-16": {"num_generations": 16, "batch_size": 96},
    "slower": {_RATE: 0.5},
    "faster": {_RATE: 1.5},
    "cooler": {"temperature": 0.85},
    "warmer": {"temperature": 1.1},
    "linear": {"lr_scheduler_type": "linear", "warmup_steps": 2},
    "cosine-decay": {"lr_scheduler_type": "cosine", "weight_decay": 0.01},
    "accumulated": {"batch_size": 32, "gradient_accumulation_steps": 2},
    "two-passes": {"num_iterations": 2, _RATE: 0.7},
    "batch-scaled": {"scale_rewards": "batch"},
    "wide-clip": {"epsilon": 0.3, "max_grad_norm": 0.5},
    "slow-adam": {"adam_beta2": 0.99},
    "evaluated": {"eval_steps": 20, "sampler_weights": "live"},
}
_MORE: dict[str, Changes] = {
    "musique-rank-4": {"lora_r": 4, "lora_alpha": 8},
    "musique-rank-16-dropout": {"lora_r": 16, "lora_dropout": 0.05},
    "musique-golden": {"retriever": "golden", "peft": False},
    "musique-less-noise": {"noise": 0.5},
    "musique-fewer-turns": {"max_turns": 6, "max_new_tokens": 80},
    "toolmath-rank-4": {"task": "toolmath", "lora_r": 4, "lora_alpha": 8},
}
"""What makes no sense for every task or for all weights."""
_DRAWN = (
    ("musique", True, ("dapo", "groups-of-16")),
    ("gsm8k", True, ("evaluated", "bnpo-beta")),
    ("musique", False, ("faster", "wide-clip")),
)
"""Instead of the three that calibration has too: of the same task and kind, each with two
variations that `random.Random(20).sample` drew."""
_FIRST_SEED = 100
_SIZE = ("seed", "max_steps", "eval_limit")
"""What does not make it another setup."""


def held_out() -> dict[str, Changes]:
    """Setups that no threshold was set on, by name."""
    found = dict(
        _setup(task, (i + j) % 2 == 0, [name])
        for i, name in enumerate(_VARIATIONS)
        for j, task in enumerate(_TASKS)
    )
    found |= {name: dict(changes) for name, changes in _MORE.items()}
    found |= dict(_setup(*drawn) for drawn in _DRAWN)
    for seed, changes in enumerate(found.values(), _FIRST_SEED):
        changes["seed"] = seed
    return {name: changes for name, changes in found.items() if not twin_of(changes)}


def twin_of(changes: Mapping[str, Any]) -> str | None:
    """The setup of calibration that differs from this one in nothing but its seed."""
    run = _as_trained(changes)
    return next((name for name, seen in CALIBRATION.items() if _as_trained(seen) == run), None)


def _as_trained(changes: Mapping[str, Any]) -> RunConfig:
    """The run without seed and size, with the learning rate that it gets where it names none."""
    run = RunConfig.from_dict({key: changes[key] for key in changes if key not in _SIZE})
    return replace(run, learning_rate=run.rate)


def _setup(task: str, peft: bool, variations: Sequence[str]) -> tuple[str, Changes]:
    """Name and settings of some variations together."""
    kind = "lora" if peft else "full"
    changes = {key: value for name in variations for key, value in _VARIATIONS[name].items()}
    rate = _RATES[task][kind] * changes.pop(_RATE, 1.0)
    name = "-".join((task, kind, *variations))
    return name, {"task": task, "peft": peft, "learning_rate": rate, **changes}
