"""Chats are padded on the side that the tokenizer is set to, because `apply_chat_template` does not
hear the side that it is told. With a tokenizer as it comes, on the right: the model goes on behind
the padding, and what it writes there is trained as if it stood behind the prompt.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.27.0",
    good="0.29.1",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py:1547",
    expects=("H50", "H15"),
)


def run(folder: Path) -> dict[str, Any]:
    return looked(lab.trainer(folder), folder)
