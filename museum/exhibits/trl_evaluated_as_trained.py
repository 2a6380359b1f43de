"""An evaluation that the schedule did not ask for (`eval_on_start`, or a call of `evaluate`) is
taken for training: its completions go into the buffer that the next step trains on. From then on
every generation is cut across two optimizer steps.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.exhibit import Exhibit
from museum.play import recorded

EXHIBIT = Exhibit(
    bad="0.17.0",
    good="0.18.1",
    beside=TRANSFORMERS_4_51,
    lines='trl/trainer/grpo_trainer.py, `mode = "eval" if self.control.should_evaluate`',
    expects=("H46", "H17", "H50"),
    later=2,
)
HELD_OUT = 6
"""Three batches: an odd number does not end where a generation does."""


def run(folder: Path) -> dict[str, Any]:
    return recorded(_trainer(folder, lab.right), folder)


def symptom(folder: Path) -> str:
    """Rows that a training step took, of problems that are held out."""
    tokenizer = lab.parts()[1]
    held = {_question(row, tokenizer) for row in lab.rows()[-HELD_OUT:]}
    trainer = _trainer(folder, lab.right)
    loss, trained, leaked = trainer.compute_loss, 0, 0

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal trained, leaked
        if model.training:
            rows = zip(inputs["prompt_ids"], inputs["prompt_mask"].bool(), strict=True)
            said = [tokenizer.decode(ids[mask]) for ids, mask in rows]
            trained, leaked = trained + len(said), leaked + sum(one in held for one in said)
        return loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = computing
    trainer.train()
    return f"{leaked} of {trained} trained rows are of held-out problems"


def _question(row: dict[str, Any], tokenizer: Any) -> str:
    return str(
        tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
    )


def _trainer(folder: Path, reward: Any) -> Any:
    from datasets import Dataset

    rows = lab.rows()
    given = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 100}
    more = {"eval_dataset": Dataset.from_list(rows[-HELD_OUT:])}
    return lab.trainer(folder, rewards=[reward], data=rows[:-HELD_OUT], more=more, **given)
