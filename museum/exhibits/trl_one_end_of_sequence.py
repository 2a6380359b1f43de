"""Only the end-of-sequence token of the tokenizer ends a completion, though the model stops at
every id of its `generation_config`. A model with several ends is taken to be cut each time, and
with `mask_truncated_completions` nothing is trained at all.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.14.1",
    good="1.14.2",
    lines="trl/trainer/grpo_trainer.py:1110, :1949, :2352",
    expects=("H14", "H51"),
)


SECOND_END = 828


def with_two_ends() -> tuple[Any, Any]:
    """The tokenizer ends with an id that the policy does not use; the model declares both."""
    model, tokenizer = lab.parts()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, SECOND_END]
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(SECOND_END)
    return model, tokenizer


def run(folder: Path) -> dict[str, Any]:
    given = {"parts": with_two_ends(), "mask_truncated_completions": True}
    return looked(lab.trainer(folder, **given), folder)
