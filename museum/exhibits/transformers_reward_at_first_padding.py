"""A reward model is read at the token before the first padding. Where the end of a turn is also the
padding, as in a tokenizer without one of its own, that is the end of the first turn: a score of the
question, the same for all completions of a group.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import OLD_HUB
from museum.exhibit import Exhibit
from museum.play import recorded

EXHIBIT = Exhibit(
    bad="4.48.3",
    good="4.49.0",
    beside=("tokenizers==0.21.4", *OLD_HUB, "trl==0.17.0"),
    lines="transformers/models/llama/modeling_llama.py:948-949",
    expects=("H32", "H52", "H05", "H39"),
    later=5,
)


def run(folder: Path) -> dict[str, Any]:
    return recorded(_trainer(folder), folder)  # a checkup needs a later TRL


def symptom(folder: Path) -> str:
    """Of the groups whose completions differ, those in which no score does."""
    trainer = _trainer(folder)
    forward, alike, count = trainer.reward_funcs[0].forward, 0, 0

    def scoring(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal alike, count
        found = forward(input_ids, *args, **kwargs)
        texts = input_ids.view(-1, trainer.num_generations, input_ids.shape[1])
        differ = (texts != texts[:, :1]).any(2).any(1)
        spread = found.logits.view(-1, trainer.num_generations).std(dim=1)
        alike += int((spread[differ] < 1e-5).sum())
        count += int(differ.sum())
        return found

    trainer.reward_funcs[0].forward = scoring
    trainer.train()
    return f"in {alike} of {count} groups of different completions all have the same score"


def _trainer(folder: Path) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = lab.parts()
    judge = AutoModelForSequenceClassification.from_pretrained(model.name_or_path, num_labels=1)
    reader = AutoTokenizer.from_pretrained(model.name_or_path)
    reader.pad_token = None  # as many tokenizers come; TRL takes the end of a turn for it
    return lab.trainer(
        folder,
        parts=(model, tokenizer),
        rewards=[judge],
        max_steps=6,
        more={"reward_processing_classes": [reader]},
    )
