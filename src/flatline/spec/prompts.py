"""What stands in front of a completion.

The messages through the chat template, with the opening of the model's turn; a plain text through
the tokenizer. Padding is not part of it: whatever a batch puts around a prompt, the model must not
see.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def prompt_ids(
    tokenizer: Any, prompt: Any, tools: Sequence[Any] | None, options: Mapping[str, Any]
) -> list[int]:
    """Token ids of one prompt. `options` are those of the chat template."""
    if isinstance(prompt, str):
        return list(tokenizer(text=prompt)["input_ids"])
    found = tokenizer.apply_chat_template(
        prompt,
        tools=list(tools) if tools else None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **options,
    )
    return list(found["input_ids"])


def without_padding(ids_T: Tensor, seen_T: Tensor) -> list[int]:
    """The ids that the model sees."""
    return [int(token) for token in ids_T[seen_T.bool()].tolist()]
