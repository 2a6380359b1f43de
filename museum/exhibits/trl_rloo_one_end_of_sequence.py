"""RLOO, too, ends a completion at the tokenizer's end-of-sequence token alone, though the model
stops at every id of its `generation_config`. Completions of a model with several ends are taken to
be cut, and with `mask_truncated_completions` left out of the loss.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.exhibits.trl_one_end_of_sequence import with_two_ends
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.14.1",
    good="1.14.2",
    lines="trl/trainer/rloo_trainer.py:709, :1316, :1368, :1443",
    expects=("H14", "H51"),
)


def run(folder: Path) -> dict[str, Any]:
    given = {"parts": with_two_ends(), "mask_truncated_completions": True}
    return looked(lab.trainer(folder, algorithm="RLOO", **given), folder)
