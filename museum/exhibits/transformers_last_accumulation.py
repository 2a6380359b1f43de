"""The loss of every pass is divided by `gradient_accumulation_steps`, also where an epoch ends
before so many passes are together. The last step of each epoch is smaller than asked for, by the
share of passes that it lacks.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import OLD_HUB
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="4.51.3",
    good="4.55.4",
    beside=("tokenizers==0.21.4", *OLD_HUB, "trl==0.20.0"),
    lines="transformers/trainer.py:3775",
    expects=("H28", "H56", "H57"),
    later=2,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """What the loss of each pass was divided by, and of how many passes its step had."""
    trainer = _trainer(folder)
    compute, step, found, seen = trainer.compute_loss, trainer.training_step, [], []

    def computing(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs) + 1.0  # so that there is something to divide
        seen.append(float(loss))
        return loss

    def stepping(*args: Any, **kwargs: Any) -> Any:
        loss = step(*args, **kwargs)
        found.append((trainer.state.global_step + 1, round(seen[-1] / float(loss), 3)))
        return loss

    trainer.compute_loss, trainer.training_step = computing, stepping
    trainer.train()
    return f"(step, divisor of each of its passes): {found}"


def _trainer(folder: Path) -> Any:
    """Six prompts in groups of four are three passes of eight rows: half a step at the end."""
    return lab.trainer(folder, data=lab.rows()[:6], steps_per_generation=1, num_train_epochs=2)
