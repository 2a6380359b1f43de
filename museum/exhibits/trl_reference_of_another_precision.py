"""The reference of a policy that is given as an object is loaded anew in float32, whatever the
precision of the policy. Both differ before any update, so that the KL is not 0 at the first step
and pulls on what is only rounding.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.14.2",
    good="1.16.0",
    lines="trl/trainer/grpo_trainer.py:995",
    expects=("H03", "H31", "H54"),
    later=3,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    trainer = _trainer(folder)
    trainer.train()
    kl = next(row["kl"] for row in trainer.state.log_history if "kl" in row)
    kinds = [str(one.dtype).removeprefix("torch.") for one in (trainer.model, trainer.ref_model)]
    return f"policy {kinds[0]}, reference {kinds[1]}, KL of {kl:.1e} before any update"


def _trainer(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model, tokenizer = lab.parts()
    half = AutoModelForCausalLM.from_pretrained(model.name_or_path, dtype=torch.bfloat16)
    return lab.trainer(folder, parts=(half, tokenizer), beta=0.04, learning_rate=1e-3)
