"""In RLOO, too, adapters of quantised models are cast to bf16, the magnitudes of DoRA among them.
Near 1 that has no digits for an update of the size of a learning rate, and they never change.
"""

from pathlib import Path
from typing import Any

from museum.exhibit import Exhibit
from museum.exhibits import trl_dora_magnitude as dora
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.14.2",
    good="1.16.0",
    stands_in=dora.EXHIBIT.stands_in,
    lines="trl/trainer/rloo_trainer.py:433-436",
    expects=("H25", "H58", "H26"),
    later=3,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(dora.trainer(folder, "RLOO"), folder)


def symptom(folder: Path) -> str:
    return dora.moved(dora.trainer(folder, "RLOO"))
