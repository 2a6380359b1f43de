"""The learning rate is logged after its schedule has moved on, so that every line of the log has
the rate of the next step. With a schedule that starts again, the largest rate stands beside the
step that had the smallest.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import OLD_HUB
from museum.exhibit import Exhibit
from museum.play import recorded

EXHIBIT = Exhibit(
    bad="4.50.3",
    good="4.51.3",
    beside=("tokenizers==0.21.4", *OLD_HUB, "trl==0.17.0"),
    lines="transformers/trainer.py:2616 and 3082",
    expects=("H48",),
    later=6,
)
STEPS = 6


def run(folder: Path) -> dict[str, Any]:
    return recorded(_trainer(folder), folder)  # a checkup needs TRL 0.19


def symptom(folder: Path) -> str:
    """The logged rates, and those that the steps were made with."""
    from transformers import TrainerCallback

    trainer, used = _trainer(folder), []

    class Rates(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
            used.append(optimizer.param_groups[0]["lr"])

    trainer.add_callback(Rates())
    trainer.train()
    rows = trainer.state.log_history
    logged = [row["learning_rate"] for row in rows if "learning_rate" in row]
    wrong = sum(abs(a - b) > 1e-9 for a, b in zip(logged, used, strict=True))
    return f"{wrong} of {len(used)} rates; logged {_said(logged)}, used {_said(used)}"


def _said(rates: list[float]) -> str:
    return " ".join(f"{one:.2g}" for one in rates)


def _trainer(folder: Path) -> Any:
    return lab.trainer(
        folder,
        max_steps=STEPS,
        lr_scheduler_type="cosine_with_restarts",
        lr_scheduler_kwargs={"num_cycles": 2},
    )
