"""A last batch of prompts that is not full is left out, and counted all the same. The schedule of
the learning rate is made for more steps than there are, so that the run ends before it, at a larger
rate than was asked for.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.19.1",
    good="0.20.0",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py:181-182",
    expects=("H24", "H44", "H58"),
    later=6,
)
PROMPTS = 31
"""Of which a generation takes 4, so that 3 are left out in every epoch, in the good release too."""


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    trainer = _trainer(folder)
    trainer.train()
    state = trainer.state
    rates = [row["learning_rate"] for row in state.log_history if "learning_rate" in row]
    left = rates[-1] / max(rates)
    return f"{state.global_step} of {state.max_steps} steps, the last at {left:.2f} of the rate"


def _trainer(folder: Path) -> Any:
    return lab.trainer(
        folder,
        data=lab.rows()[:PROMPTS],
        num_train_epochs=1,
        max_steps=-1,
        lr_scheduler_type="linear",
    )
