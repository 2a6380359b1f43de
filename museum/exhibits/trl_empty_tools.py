"""A trainer without tools hands the chat template an empty list of them, where none is meant.
Templates that ask whether there is a list, as those of Llama 3 do, begin their part on functions in
every prompt, and the policy is trained behind it.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.29.1",
    good="1.0.0",
    lines="trl/trainer/grpo_trainer.py:1232",
    expects=("H49", "H10", "H16"),
    later=4,
)
HEADING = "# Tools"


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Prompts of trained rows in which tools are spoken of."""
    trainer = _trainer(folder)
    loss, spoken, count = trainer.compute_loss, 0, 0

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal spoken, count
        said = trainer.processing_class.batch_decode(inputs["prompt_ids"])
        spoken, count = spoken + sum(HEADING in one for one in said), count + len(said)
        return loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = computing
    trainer.train()
    return f"{spoken} of {count} prompts have a heading for tools"


def _trainer(folder: Path) -> Any:
    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"
    # As in Llama 3 the heading stands where there is a list, if only an empty one.
    begun = f"{{%- if tools is not none -%}}{{{{- '\\n{HEADING}' -}}}}{{%- endif -%}}"
    own = tokenizer.chat_template.replace(f"\\n\\n{HEADING}\\n", "\\n")
    own = own.replace("{%- if tools -%}", begun + "{%- if tools -%}")
    own = own.replace("if system or tools -", "if system or tools is not none -")
    tokenizer.chat_template = own
    return lab.trainer(folder, parts=(model, tokenizer))
