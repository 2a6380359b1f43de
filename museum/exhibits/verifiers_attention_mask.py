"""The loss mask is given to the model as its attention mask. What is not trained, which is all of
the prompt, is hidden from the pass that is trained through.
"""

from pathlib import Path
from typing import Any

from museum import verifiers_lab
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.1.3.post0",
    good="0.1.7",
    beside=verifiers_lab.BASE,
    stands_in="the client of the vLLM server, which hands the weights to `flatline serve`",
    lines="verifiers/trainers/grpo_trainer.py:1086-1106, then compute_loss:1187",
    expects=("H09",),
)


def run(folder: Path) -> dict[str, Any]:
    # In one turn: over several 0.1.7 has a defect of its own (docs/real-model.md).
    return verifiers_lab.looked(verifiers_lab.trainer, folder)
