"""RLOO counts every pass twice, once when its rows are dealt and once when it is over, so that the
place in what was generated moves by two. With two passes to a generation each pass samples anew
and trains on the first half; the other half is paid for and thrown away.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.26.2",
    good="0.27.0",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/rloo_trainer.py:905 and 939",
    expects=("H33", "H44", "H50"),
    later=3,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    trainer = _trainer(folder)
    generate, loss = trainer._generate_and_score_completions, trainer.compute_loss
    generated, trained = 0, 0

    def generating(inputs: Any) -> Any:
        nonlocal generated
        generated += len(inputs)
        return generate(inputs)

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal trained
        trained += len(inputs["completion_ids"])
        return loss(model, inputs, *args, **kwargs)

    trainer._generate_and_score_completions, trainer.compute_loss = generating, computing
    trainer.train()
    return f"{generated} rollouts were sampled for {trained} that were trained"


def _trainer(folder: Path) -> Any:
    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"  # right is a defect of its own here, trl_right_padding
    return lab.trainer(folder, parts=(model, tokenizer), algorithm="RLOO")
