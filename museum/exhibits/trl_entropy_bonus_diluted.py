"""With `dapo` the bonus on entropy is summed over the tokens that `top_entropy_quantile` keeps and
divided by all tokens of the batch. Of the mean that `entropy_coef` is to weigh, only that share is
in the loss.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.9.2",
    good="1.10.0",
    lines="trl/trainer/grpo_trainer.py:3167-3171",
    expects=("H57", "H56", "H55"),
    later=4,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder, lab.right), folder)


def symptom(folder: Path) -> str:
    """Where every reward is the same, the gradient is that of the bonus alone."""
    trainer = _trainer(folder, lambda completions, **_: [0.0] * len(completions))
    trainer.train()
    norm = next(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row)
    return f"the gradient of the bonus is {float(norm):.4f} long in step 1"


def _trainer(folder: Path, reward: Any) -> Any:
    return lab.trainer(
        folder,
        rewards=[reward],
        loss_type="dapo",
        entropy_coef=0.05,
        top_entropy_quantile=0.2,
    )
