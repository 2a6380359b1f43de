"""Old log-probs are taken only where a generation serves more passes than an optimizer step has.
Where the two do not divide, rows are trained after an update as if they had just been sampled.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.19.1",
    good="0.20.0",
    beside=TRANSFORMERS_4_51,
    lines="trl/trainer/grpo_trainer.py:1211-1219",
    expects=("H55", "H17", "H54", "H22"),
    later=1,
)


def run(folder: Path) -> dict[str, Any]:
    given = {"gradient_accumulation_steps": 3, "steps_per_generation": 2, "max_steps": 6}
    return looked(lab.trainer(folder, **given), folder)
