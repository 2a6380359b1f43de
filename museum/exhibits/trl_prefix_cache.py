"""vLLM keeps the keys of prompts that it has seen, and nobody empties that cache when weights
change. Prompts that come again, and what all prompts begin with, are read through old weights.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.15.2",
    good="0.16.0",
    beside=TRANSFORMERS_4_51,
    stands_in="vLLM: keeps the keys of prompts until `reset_prefix_cache`",
    lines="trl/trainer/grpo_trainer.py:412",
    expects=("H19", "H06", "H17"),
)


def run(folder: Path) -> dict[str, Any]:
    # At temperature 1 the defect of trl_temperature does not show; prompts come again.
    given = {"use_vllm": True, "temperature": 1.0, "vllm_device": "cpu", "max_steps": 6}
    return bridged(folder, data=lab.rows()[:4], learning_rate=2e-3, **given)
