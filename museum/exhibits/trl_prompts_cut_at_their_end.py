"""Prompts longer than `max_prompt_length` are cut on the side that the tokenizer is set to, which
is the right one as it comes. They lose the end of the question and the header of the answer, and
the policy goes on in the middle of what the user says.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.24.0",
    good="0.28.0",  # from 0.26 on prompts are not cut any more; from here on nothing can be asked
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py:1272-1281",
    expects=("H49", "H04"),
    later=5,
)
LONGEST = 34
"""Tokens; about half of the prompts of the lab are longer."""
HEADER = "<|im_start|>assistant\n"


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Prompts of trained rows that do not end where an answer begins."""
    trainer = _trainer(folder)
    loss, cut, count = trainer.compute_loss, 0, 0

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal cut, count
        said = trainer.processing_class.batch_decode(inputs["prompt_ids"])
        cut, count = cut + sum(not one.endswith(HEADER) for one in said), count + len(said)
        return loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = computing
    trainer.train()
    return f"{cut} of {count} prompts lack the header of the answer"


def _trainer(folder: Path) -> Any:
    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"  # right is a defect of its own in 0.28.0, trl_right_padding
    return lab.trainer(folder, parts=(model, tokenizer), max_prompt_length=LONGEST)
