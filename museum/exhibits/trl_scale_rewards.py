"""The branches of `scale_rewards` are swapped: "group", the default, leaves advantages unscaled,
and "none" scales them. Whoever asked for Dr. GRPO got GRPO, and the other way round.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.22.1",
    good="0.22.2",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py:1401-1414",
    expects=("H53", "H01"),
)


def run(folder: Path) -> dict[str, Any]:
    return looked(lab.trainer(folder), folder)
