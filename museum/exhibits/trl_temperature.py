"""Completions are sampled at `temperature` and scored as if it were 1. Every log-prob of the
trainer is that of another policy than the one that sampled, and so is every gradient.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.exhibit import Exhibit
from museum.play import recorded

EXHIBIT = Exhibit(
    bad="0.15.2",
    good="0.16.0",
    beside=TRANSFORMERS_4_51,
    lines="trl/trainer/grpo_trainer.py:524-550, no `temperature` in `_get_per_token_logps`",
    expects=("H21", "H54"),
)


def run(folder: Path) -> dict[str, Any]:
    return recorded(lab.trainer(folder, temperature=0.7), folder)
