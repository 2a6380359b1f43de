"""RLOO, too, logs the plain sum of all reward functions, whatever `reward_weights` says. Training
uses the weights, so the curve that people watch is not that of what is trained.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.29.1",
    good="1.0.0",
    lines="trl/trainer/rloo_trainer.py:1261-1262",
    expects=("H48",),
)


def run(folder: Path) -> dict[str, Any]:
    given = {"rewards": [lab.right, lab.short], "reward_weights": [1.0, 0.2]}
    return looked(lab.trainer(folder, algorithm="RLOO", **given), folder)
