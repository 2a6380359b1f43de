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
        before_user=_before_user(tokenizer),
        unopened=_unopened(tokenizer),
        turn_end=_turn_end(tokenizer),
        end=getattr(tokenizer, "eos_token_id", None),
    )


ASKED = {"role": "user", "content": "asked-7Q"}
SAID = {"role": "assistant", "content": "said-7A"}
"""Messages that are found again in what a template makes of them."""


def _before_user(tokenizer: Any) -> str:
    text = _rendered(tokenizer, [ASKED]) or ""
    before, found, _ = text.partition(ASKED["content"])
    return before.removeprefix(getattr(tokenizer, "bos_token", None) or "") if found else ""


def _unopened(tokenizer: Any) -> str:
    """Templates such as Mistral's need no opening: the answer stands right behind the prompt. Where
    a template has one, it must be able to write it without the answer."""
    closed, opened = (_rendered(tokenizer, [ASKED], opening) for opening in (False, True))
    whole = _rendered(tokenizer, [ASKED, SAID])
    if closed is None or opened is None or whole is None or closed != opened:
        return ""
    between, found, _ = whole.removeprefix(opened).partition(SAID["content"])
    return between.strip() if found and whole.startswith(opened) else ""


def _turn_end(tokenizer: Any) -> int | None:
    text = _rendered(tokenizer, [ASKED, SAID]) or ""
    end = text.partition(SAID["content"])[2].strip()
    ids = tokenizer(end, add_special_tokens=False)["input_ids"] if end else []
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return int(ids[0]) if ids and ids[0] in special else None


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


def _rendered(tokenizer: Any, messages: list[dict[str, str]], opening: bool = False) -> str | None:
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opening)
        )
    except Exception:  # a template is a program of the user's; it may raise anything
        return None
