"""The adapter is taken out of the weights before vLLM reads them, because the dictionary of
weights holds the tensors themselves. The engine samples with the base model for the whole run.
"""

from pathlib import Path
from typing import Any

from museum.bases import TRANSFORMERS_4_51
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.15.0",
    good="0.15.1",
    beside=TRANSFORMERS_4_51,
    stands_in="vLLM: samples with a copy of the model that only `load_weights` changes",
    lines="trl/trainer/grpo_trainer.py:496-515",
    expects=("H06", "H17", "H59"),
)


def run(folder: Path) -> dict[str, Any]:
    from peft import LoraConfig

    adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    given = {
        "use_vllm": True,
        "temperature": 1.0,
        "vllm_device": "cpu",
        "max_steps": 5,
        "learning_rate": 3e-3,
    }
    return bridged(folder, more={"peft_config": adapter}, **given)
