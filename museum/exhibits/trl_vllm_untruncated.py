"""With `max_prompt_length` the trainer scores the end of each prompt, and vLLM samples behind
the whole of it. What is trained is a completion of a prompt that the policy never saw.
"""

from pathlib import Path
from typing import Any

from museum.bases import TRANSFORMERS_4_51
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.18.2",
    good="0.20.0",
    beside=TRANSFORMERS_4_51,
    stands_in="vLLM: samples with what it is given",
    lines="trl/trainer/grpo_trainer.py:1001-1004",
    expects=("H10", "H11", "H04", "H49"),
)


def run(folder: Path) -> dict[str, Any]:
    given = {"use_vllm": True, "vllm_mode": "colocate", "max_prompt_length": 32}
    return bridged(folder, temperature=1.0, **given)
