"""In RLOO, too, chats are rendered without the line that begins the assistant's turn, so the model
has to write it itself before it can answer. What it is asked is another prompt than at any other
time.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.24.0",
    good="0.25.0",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/rloo_trainer.py, `_generate_single_turn`; no `add_generation_prompt`",
    expects=("H49", "H16"),
)


def run(folder: Path) -> dict[str, Any]:
    return looked(lab.trainer(folder, algorithm="RLOO"), folder)
