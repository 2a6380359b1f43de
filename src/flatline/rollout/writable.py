"""Tokens that a model cannot write, because it cannot tell them from others.

Rows of the output layer that were never trained are often one and the same, for hundreds of tokens:
Qwen2.5-Coder has 298 such rows, and `<tool_call>` is among them. Whatever the layers below compute,
all of these tokens get the same probability. Training the layers below never changes that.
"""

from typing import Any

from flatline.rollout.chat import ChatFormat


def unwritable(model: Any, chat: ChatFormat) -> dict[str, int]:
    """Tokens of the chat format whose output rows others have too, and how many others.

    Adapters below the output layer cannot tell them apart; where its rows are trained, they drift.
    """
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        return {}
    weight_VD = head.weight.detach()
    shared = {
        text: int((weight_VD == weight_VD[id]).all(1).sum()) - 1
        for text, id in chat.written_tokens().items()
        if id < len(weight_VD)
    }
    return {text: count for text, count in shared.items() if count}
