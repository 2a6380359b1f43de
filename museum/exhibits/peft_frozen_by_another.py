"""An adapter that is added as one not to train freezes those that are active too. The copy that TRL
makes as the reference of a policy whose adapter was loaded is such a one: the optimizer gets
nothing, and gradients of the usual size lead nowhere.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.20.0",
    good="0.21.0",
    beside=("trl==1.10.0",),
    lines="peft/tuners/tuners_utils.py:1056",
    expects=("H26", "H58", "H06"),
    later=6,
)
LEARNT = 0.05
"""Size of what the adapter holds when the run begins."""


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Numbers of the adapter that training changes, and what the optimizer has."""
    trainer = _trainer(folder)
    model = trainer.accelerator.unwrap_model(trainer.model)
    own = {n: p for n, p in model.named_parameters() if ".default." in n}
    before = {name: one.detach().clone() for name, one in own.items()}
    trainer.train()
    moved = sum(int((one != before[name]).sum()) for name, one in own.items())
    total = sum(one.numel() for one in own.values())
    held = sum(len(group["params"]) for group in trainer.optimizer.param_groups)
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    said = ", ".join(f"{float(one):.3f}" for one in norms)
    return f"{moved} of {total} numbers moved, {held} tensors to train, gradients of norm {said}"


def _trainer(folder: Path) -> Any:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model

    model, tokenizer = lab.parts()
    layers = ["q_proj", "v_proj"]
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules=layers, task_type="CAUSAL_LM")
    taught = get_peft_model(model, adapter)
    with torch.no_grad():
        for name, one in taught.named_parameters():
            if "lora_B" in name:
                one.normal_(std=LEARNT)
    taught.save_pretrained(folder / "taught")
    policy = PeftModel.from_pretrained(lab.parts()[0], folder / "taught")
    policy.set_adapter("default")  # to be trained on, as it is loaded to be used
    return lab.trainer(folder, parts=(policy, tokenizer), beta=0.04, learning_rate=1e-3)
