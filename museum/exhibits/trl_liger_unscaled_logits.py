"""With `use_liger_kernel` the loss takes hidden states times the output layer for the logits, and
models like Granite divide those by a number of their own. The policy that is trained is a sharper
one than the policy that samples.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.13.0",
    good="1.16.0",
    stands_in="Liger's kernels, which need a GPU: transformers' layers; the loss is TRL's own",
    lines="trl/trainer/grpo_trainer.py:2987-2996",
    expects=("H54", "H21", "H55", "H57"),
    later=6,
)
DIVISOR = 4.0
"""Granite 3 has 4 to 16."""


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """The gradient of the first step, with and without what should only save memory."""
    found = []
    for fused in (True, False):
        trainer = _trainer(folder / str(fused), use_liger_kernel=fused, max_steps=1)
        trainer.train()
        norm = next(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row)
        found.append(float(norm))
    fused, plain = found
    return f"the gradient of step 1 is {fused:.4f} long with it and {plain:.4f} without"


def _trainer(folder: Path, **given: Any) -> Any:
    import torch

    _without_kernels()
    torch._dynamo.config.disable = True  # there may be no compiler
    return lab.trainer(folder, parts=_granite(*lab.parts()), **{"use_liger_kernel": True} | given)


def _granite(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The same function, by an output layer that is as many times larger as logits are divided."""
    import torch
    from transformers import GraniteConfig, GraniteForCausalLM

    own = model.config
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps")
    heads = ("num_attention_heads", "num_key_value_heads", "attention_bias", "rope_parameters")
    ends = ("max_position_embeddings", "eos_token_id", "pad_token_id", "bos_token_id")
    config = GraniteConfig(
        **{name: getattr(own, name) for name in (*kept, *heads, *ends)},
        attention_multiplier=own.head_dim**-0.5,
        logits_scaling=DIVISOR,
        tie_word_embeddings=False,
    )
    made = GraniteForCausalLM(config)
    weights = model.state_dict() | {"lm_head.weight": model.lm_head.weight.detach() * DIVISOR}
    made.load_state_dict(weights)
    ids = torch.arange(40)[None]
    torch.testing.assert_close(made(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-3)
    made.warnings_issued = {}
    made.save_pretrained(model.name_or_path)
    made.name_or_path = model.name_or_path
    return made, tokenizer


def _without_kernels() -> None:
    """Liger may be there; it changes nothing."""
    import transformers.integrations.liger as asked
    from trl.trainer import grpo_trainer as own

    for name in ("liger_kernel", "liger_kernel.transformers"):
        sys.modules.setdefault(name, ModuleType(name))
    kernels: Any = sys.modules["liger_kernel.transformers"]
    kernels._apply_liger_kernel_to_instance = lambda **_: None
    asked.is_liger_kernel_available = lambda *_: True
    own.is_liger_kernel_available = lambda *_: True
