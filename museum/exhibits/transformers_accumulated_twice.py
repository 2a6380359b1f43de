"""The trainer tells accelerate how many passes make a step, and accelerate divides every loss by
that number; the loss is divided by it already. Each gradient is as many times too short as a step
has passes.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_5_5
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="5.5.3",
    good="5.5.4",
    beside=("trl==1.16.0", *TRANSFORMERS_5_5),
    lines="transformers/trainer.py:768, then accelerate's `Accelerator.backward`",
    expects=("H28", "H56", "H57"),
    later=5,
)
PASSES = 4


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """By what each loss is divided between `compute_loss` and the backward pass."""
    trainer = _trainer(folder)
    compute, found = trainer.compute_loss, []

    def computing(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        loss.register_hook(lambda grad: found.append(round(1 / float(grad), 3)))
        return loss

    trainer.compute_loss = computing
    trainer.train()
    norm = next(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row)
    by = ", ".join(map(str, sorted(set(found))))
    return f"losses are divided once more by {by}; the gradient of step 1 is {float(norm):.4f} long"


def _trainer(folder: Path) -> Any:
    return lab.trainer(folder, per_device_train_batch_size=4, gradient_accumulation_steps=PASSES)
