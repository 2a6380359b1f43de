"""Prompts that are plain text are tokenised without special tokens, as if a chat template had
written them already. The token that the tokenizer begins every text with is missing, and the policy
samples and is trained behind prompts that its model was never shown.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.25.1",
    good="0.26.2",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py:1352",
    expects=("H49", "H16"),
    later=5,
)
BEGINNING = "<|im_start|>"
"""What the tokenizer puts in front of every text, as those of Llama and Gemma do."""


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Prompts of trained rows beside what the tokenizer makes of the text in the data."""
    trainer = _trainer(folder)
    loss, without, count = trainer.compute_loss, 0, 0
    begins = trainer.processing_class.convert_tokens_to_ids(BEGINNING)

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal without, count
        for ids, mask in zip(inputs["prompt_ids"], inputs["prompt_mask"].bool(), strict=True):
            without += int(ids[mask][0]) != begins
            count += 1
        return loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = computing
    trainer.train()
    return f"{without} of {count} prompts lack the token that begins a text"


def right(completions: list[str], problem_id: list[str], **given: Any) -> list[float]:
    return lab.right([[{"content": one}] for one in completions], problem_id, **given)


def _trainer(folder: Path) -> Any:
    from tokenizers.processors import TemplateProcessing

    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"
    rows = [one | {"prompt": _text(tokenizer, one["prompt"])} for one in lab.rows()]
    begins = tokenizer.convert_tokens_to_ids(BEGINNING)
    tokenizer.bos_token = BEGINNING
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGINNING} $A", special_tokens=[(BEGINNING, begins)]
    )
    return lab.trainer(folder, parts=(model, tokenizer), rewards=[right], data=rows)


def _text(tokenizer: Any, messages: Any) -> str:
    """A prompt as somebody writes it who leaves its beginning to the tokenizer."""
    asked = {"tokenize": False, "add_generation_prompt": True}
    return str(tokenizer.apply_chat_template(messages, **asked)).removeprefix(BEGINNING)
