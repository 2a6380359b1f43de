"""What the tokenizer and its chat template do, tried on a few words."""

from typing import Any

from flatline.live.held import rows
from flatline.live.records import TokenizerFit


def tokenizer_fit(tokenizer: Any, model: Any) -> TokenizerFit:
    """Whether they belong together, and what the template would do to a conversation."""
    return TokenizerFit(
        highest_id=max(tokenizer.get_vocab().values(), default=-1),
        rows=rows(model.get_input_embeddings().weight),
        drops_thinking=_drops_thinking(tokenizer),
        doubled=_doubled(tokenizer),
    )


def _drops_thinking(tokenizer: Any) -> bool | None:
    """Whether a turn that thinks is written otherwise once others follow; None where unknown."""
    thinking = {"role": "assistant", "content": "<think>\nfirst this\n</think>\n\nIt is so."}
    begun = [{"role": "user", "content": "Is it?"}, thinking]
    short = _rendered(tokenizer, begun)
    long = _rendered(tokenizer, [*begun, {"role": "user", "content": "Sure?"}])
    if short is None or long is None:
        return None
    return "first this" in short and "first this" not in long


def _doubled(tokenizer: Any) -> str:
    """The token that a templated prompt begins with twice if it is encoded with special tokens."""
    text = _rendered(tokenizer, [{"role": "user", "content": "Hello"}])
    ids = [] if text is None else tokenizer(text)["input_ids"]
    return str(tokenizer.decode(ids[:1])) if len(ids) > 1 and ids[0] == ids[1] else ""


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str | None:
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception:  # a template is a program of the user's; it may raise anything
        return None
