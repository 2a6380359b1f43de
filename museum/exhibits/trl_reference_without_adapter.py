"""A policy that is given with an adapter it was trained with before has its reference computed with
the adapter off. The KL pulls it towards the base model, and not towards where the run began.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.26.2",
    good="0.27.0",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py:1908",
    expects=("H03", "H54", "H31"),
    later=4,
)
LEARNT = 0.1
"""Size of what the adapter holds when the run begins."""


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    trainer = _trainer(folder)
    trainer.train()
    found = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    return f"the KL is {', '.join(f'{one:.4g}' for one in found)}"


def _trainer(folder: Path) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"  # right is a defect of its own here, trl_right_padding
    layers = ["q_proj", "v_proj"]
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules=layers, task_type="CAUSAL_LM")
    policy = get_peft_model(model, adapter)
    with torch.no_grad():
        for name, one in policy.named_parameters():
            if "lora_B" in name:
                one.normal_(std=LEARNT)
    return lab.trainer(folder, parts=(policy, tokenizer), beta=0.04)
