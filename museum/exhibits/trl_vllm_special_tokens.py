"""Prompts are decoded without their special tokens before vLLM gets them, so the turns of a chat
run into each other. The trainer scores the completions behind the prompt as it should have been.
"""

from pathlib import Path
from typing import Any

from museum.bases import TRANSFORMERS_4_51
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.19.0",
    good="0.20.0",
    beside=TRANSFORMERS_4_51,
    stands_in="vLLM: samples with what it is given",
    lines="trl/trainer/grpo_trainer.py:1085-1088",
    expects=("H10", "H11", "H16", "H49"),
    later=1,
)


def run(folder: Path) -> dict[str, Any]:
    # TRL 0.19.0 stops where these are None.
    given = {"use_vllm": True, "vllm_mode": "colocate", "generation_kwargs": {}}
    return bridged(folder, temperature=1.0, **given)
