"""Prompts are decoded with the padding that aligns them, and vLLM reads that padding as text.
The shorter a prompt beside the longest of its batch, the more of it stands in front.
"""

from pathlib import Path
from typing import Any

from museum.bases import TRANSFORMERS_4_51
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.19.1",
    good="0.20.0",
    beside=TRANSFORMERS_4_51,
    stands_in="vLLM: samples with what it is given",
    lines="trl/trainer/grpo_trainer.py:1086-1089",
    expects=("H10", "H11", "H15", "H16", "H49"),
    later=1,
)


def run(folder: Path) -> dict[str, Any]:
    given = {"use_vllm": True, "vllm_mode": "colocate"}
    return bridged(folder, temperature=1.0, **given)
