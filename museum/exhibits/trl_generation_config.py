"""What the arguments leave at its default is taken from the model's own `generation_config`: a
repetition penalty there is in force whenever completions are drawn. They are scored without it.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.26.0",
    good="0.27.0",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py, `unwrap_model_for_generation` without `generation_kwargs`",
    expects=("H21", "H50"),
)
PENALTY = 1.1


def run(folder: Path) -> dict[str, Any]:
    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"  # so that trl_right_padding does not show
    model.generation_config.repetition_penalty = PENALTY
    return looked(lab.trainer(folder, parts=(model, tokenizer)), folder)
