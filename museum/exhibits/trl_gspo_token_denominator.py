"""The trainer of GSPO-token divides the sum of `dapo` by the tokens of the whole generation, though
a step trains on a part of it. With `steps_per_generation` twice `gradient_accumulation_steps` every
gradient is half as long.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.9.0",
    good="1.10.0",
    lines="trl/experimental/gspo_token/grpo_trainer.py:124-125",
    expects=("H56", "H57", "H28"),
    later=3,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    trainer = _trainer(folder)
    trainer.train()
    norm = next(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row)
    return f"the gradient of step 1 is {float(norm):.4f} long"


def _trainer(folder: Path) -> Any:
    import trl
    from trl.experimental.gspo_token import GRPOTrainer

    trl.GSPOTrainer, trl.GSPOConfig = GRPOTrainer, trl.GRPOConfig  # where the lab looks for it
    return lab.trainer(
        folder,
        algorithm="GSPO",
        importance_sampling_level="sequence_token",
        loss_type="dapo",
        steps_per_generation=4,
        gradient_accumulation_steps=2,
    )
