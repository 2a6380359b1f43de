"""Adapters of quantised models are cast to bf16, the magnitudes of DoRA among them. They are near
or above 1, where bf16 has no digits for an update of the size of a learning rate: the magnitudes
never change, and no error says so.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.14.2",
    good="1.16.0",
    stands_in="quantised weights, which need a GPU: whole ones that are said to be of 4 bit",
    lines="trl/trainer/grpo_trainer.py:520-523",
    expects=("H25", "H58", "H26"),
    later=2,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(trainer(folder), folder)


def symptom(folder: Path) -> str:
    return moved(trainer(folder))


def moved(trainer: Any) -> str:
    """Magnitudes that training changes."""
    own = {n: p for n, p in trainer.model.named_parameters() if "magnitude" in n}
    before = {name: one.detach().clone() for name, one in own.items()}
    trainer.train()
    changed = sum(int((one != before[name]).sum()) for name, one in own.items())
    count = sum(one.numel() for one in own.values())
    kinds = sorted({str(one.dtype).removeprefix("torch.") for one in own.values()})
    return f"{changed} of {count} magnitudes ({', '.join(kinds)}) changed in training"


def trainer(folder: Path, algorithm: str = "GRPO") -> Any:
    from peft import LoraConfig

    model, tokenizer = lab.parts()
    model.is_loaded_in_4bit = True
    adapter = LoraConfig(
        r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", use_dora=True
    )
    given = {"algorithm": algorithm, "more": {"peft_config": adapter}, "learning_rate": 1e-3}
    return lab.trainer(folder, parts=(model, tokenizer), **given)
