"""With `mask_truncated_completions` the tokens of completions that were cut carry no loss, yet
the losses that divide by all tokens still count them. The step shrinks with the share that was
cut.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.8.0",
    good="1.9.0",
    lines="trl/trainer/grpo_trainer.py:3006",
    expects=("H56", "H28"),
)


def run(folder: Path) -> dict[str, Any]:
    return looked(
        lab.trainer(
            folder, mask_truncated_completions=True, max_completion_length=48, loss_type="dapo"
        ),
        folder,
    )
