"""The losses that divide by all tokens take those of the whole generation, though a step trains
on a part of it. With `steps_per_generation` twice `gradient_accumulation_steps` every gradient
is half as long.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.8.0",
    good="1.9.2",
    lines="trl/trainer/grpo_trainer.py:3006",
    expects=("H56", "H28"),
)


def run(folder: Path) -> dict[str, Any]:
    return looked(
        lab.trainer(
            folder, steps_per_generation=4, gradient_accumulation_steps=2, loss_type="dapo"
        ),
        folder,
    )
