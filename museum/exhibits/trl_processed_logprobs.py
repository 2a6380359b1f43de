"""vLLM returns log-probs from before the temperature, and they are taken for those that
completions were drawn with. At any temperature but 1 the correction for the gap between sampler
and trainer corrects a gap that is not there.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.23.1",
    good="0.24.0",
    beside=TRANSFORMERS_4,
    stands_in="vLLM: gives log-probs from before the temperature unless asked otherwise",
    lines="trl/trainer/grpo_trainer.py:525-540, no `logprobs_mode`",
    expects=("H21", "H22"),
)


def run(folder: Path) -> dict[str, Any]:
    given = {"use_vllm": True, "vllm_mode": "colocate", "temperature": 1.3}
    return looked(lab.trainer(folder, **given), folder)
