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


def reply_ids(
    tokenizer: Any, replies: Sequence[Mapping[str, Any]], template: str | None, options: Any
) -> list[int] | None:
    """What stands between a call of tools and the next turn: their replies through the template,
    from behind the end of the calling turn on. None where the template renders that turn otherwise
    once it is answered."""
    names = [str(reply.get("name", "tool")) for reply in replies]
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in names]
    asked = {"role": "user", "content": "?"}
    before: list[Mapping[str, Any]] = [
        asked,
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]

    def rendered(messages: Sequence[Mapping[str, Any]], begins: bool) -> list[int]:
        found = tokenizer.apply_chat_template(
            list(messages),
            add_generation_prompt=begins,
            tokenize=True,
            return_dict=False,
            chat_template=template,
            **options,
        )
        return list(found)

    first, whole = rendered(before, False), rendered([*before, *replies], True)
    ends = [at for at, token in enumerate(first) if token == tokenizer.eos_token_id]
    cut = ends[-1] + 1 if ends else len(first)
    return whole[cut:] if whole[:cut] == first[:cut] else None
