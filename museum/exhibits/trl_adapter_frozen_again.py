"""A quantised model that already carries its adapter is prepared for training once more, which
freezes every weight of it. No weight is trained; the gradient that checkpointing asks of the
embeddings keeps the backward pass from failing.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.23.0",
    good="0.23.1",
    beside=TRANSFORMERS_4,
    stands_in="quantised weights, which need a GPU: whole ones that are said to be of 8 bit",
    lines="trl/models/utils.py, `prepare_peft_model`",
    expects=("H26", "H06", "H58"),
    later=2,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    trainer = _trainer(folder)
    trainable = sum(one.numel() for one in trainer.model.parameters() if one.requires_grad)
    trainer.train()
    norms = [one["grad_norm"] for one in trainer.state.log_history if "grad_norm" in one]
    return f"{trainable} trainable numbers; norms of the gradient: {norms}"


def _trainer(folder: Path) -> Any:
    from peft import LoraConfig, get_peft_model

    model, tokenizer = lab.parts()
    model.is_loaded_in_8bit = True
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    given = {"gradient_checkpointing": True, "learning_rate": 3e-3}
    return lab.trainer(folder, parts=(get_peft_model(model, adapter), tokenizer), **given)
