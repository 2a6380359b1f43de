"""Pay that no answer earned: a reward model read at the wrong label, prompts that hold their own
question with its answer, and prompts that stand with several right answers. And pay that no answer
can earn: for a tag that the prompt has already.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import nn

from flatline.live.measure.played import Played
from flatline.live.stage_found import StageFound, departs
from flatline.live.texts import OPENING_TAG
from flatline.live.trl.departure.asked_again import UNLIKELY, calls, of_the_batch, plain
from flatline.live.trl.departure.data import Heard, _name
from flatline.live.trl.gold import gold_names

ROWS = 64
"""Rows of the data that are read."""
FEWEST = 8
"""Rows that must hold their answer; different prompts that are needed."""
MOST, SELDOM = 0.5, 0.1
"""Share of rows that hold their own answer behind their question, and the answer of another row."""
FEWEST_PAID = 3
"""Completions that must be paid with a tag in front of them."""
TAIL = 32
"""Tokens at the end of a prompt that are read."""
LINES = 4
"""Lines at the end of a prompt among which its question is looked for."""


def judge_labels(trainer: Any) -> StageFound | None:
    """TRL pays the first logit of a reward model: right where it has one label. A function may have
    a `config` of some model, too, and two labels are what every such config has by itself."""
    for at, function in enumerate(trainer.reward_funcs):
        config = getattr(function, "config", None)
        labels = getattr(config, "num_labels", 1)
        if isinstance(function, nn.Module) and labels > 1:
            first = (getattr(config, "id2label", None) or {}).get(0, 0)
            return _unearned(
                f"The reward model `{_name(trainer, at)}` has {labels} labels, and the trainer "
                f"pays the logit of the first, {first!r}, whatever the others say.",
                expected="a reward model with one label",
                fix="Load the reward model with `num_labels=1`, or pass a function that returns "
                "the score you mean, for example the second logit less the first.",
                headline="Your reward is the wrong output of your reward model.",
            )
    return None


def judge_leaked(trainer: Any) -> StageFound | None:
    """Does a prompt hold its own question, and right behind it the answer? A text that the answer
    is to be found in does not repeat the question."""
    rows = _rows(trainer)
    texts, answers = [text for text, _ in rows], [answer for _, answer in rows]
    questions = _questions(texts)
    own, other = (
        [_behind(*one) for one in zip(texts, questions, given, strict=True)]
        for given in (answers, [*answers[1:], *answers[:1]])
    )
    if sum(own) < max(FEWEST, MOST * len(rows)) or sum(other) > SELDOM * len(rows):
        return None
    at = own.index(True)
    return _unearned(
        f"{sum(own)} of {len(rows)} prompts hold their own question with the right answer behind "
        "it: it only has to be copied.",
        f"{questions[at][-60:]!r} stands in its prompt, followed by {answers[at][:40]!r}",
        expected="questions without their answer",
        fix="Leave the row itself out of the examples that its prompt is given.",
        headline="Your prompts already contain the answer.",
    )


def judge_ambiguous(trainer: Any) -> StageFound | None:
    """Does one prompt stand with several right answers? Where an environment, a tool or a player
    says more than the prompt does, it may."""
    plays = ("tools", "environment_factory", "rollout_func")
    if any(getattr(trainer, name, None) for name in plays):
        return None
    rows = _rows(trainer)
    golds: dict[str, set[str]] = {}
    for text, answer in rows:
        golds.setdefault(text, set()).add(answer)
    torn = [text for text, _ in rows if len(golds[text]) > 1]
    if len(golds) < FEWEST or len(torn) < MOST * len(rows):
        return None
    shown = sorted(golds[torn[0]])[:3]
    return _unearned(
        f"{len(torn)} of {len(rows)} rows share their prompt with a row whose gold is another: "
        "what they differ in does not reach the model.",
        f"{torn[0][-80:]!r} stands with the answers {', '.join(map(repr, shown))}",
        expected="one right answer to a prompt",
        fix="Look at how prompts are cut and put together: print some that are the same.",
        headline="The same prompt has several right answers in your data.",
    )


def judge_opened(trainer: Any, heard: Heard, whole: Played) -> StageFound | None:
    """Does a function that pays nobody pay, once the tag that prompts end with is put in front of
    the completions?"""
    tag = _opened(trainer, whole)
    if tag is None:
        return None
    for one in calls(trainer, heard):
        with suppress(Exception):  # a function that cannot be asked again tells nothing
            given = of_the_batch(one.given, whole)
            if given is None or any(tag in _text(said) for said in given["completions"]):
                continue
            before = [float(paid or 0.0) for paid in one.function(**given)]
            said = [_with(tag, completion) for completion in given["completions"]]
            after = [float(p or 0.0) for p in one.function(**{**given, "completions": said})]
            more = [row for row, (a, b) in enumerate(zip(before, after, strict=True)) if b > a]
            if max(before) > min(before) or max(before) > 0 or len(more) < FEWEST_PAID:
                continue
            return _unearned(
                f"`{one.name}` pays nothing for any of {len(before)} completions. With `{tag}` in "
                f"front of them, which their prompts end with already, {len(more)} of them are "
                "paid.",
                f"row {more[0]}: {_text(given['completions'][more[0]])[:60]!r} earns "
                f"{before[more[0]]:g}, and {after[more[0]]:g} with `{tag}` in front",
                expected="a reward that reads what the model writes",
                fix=f"Leave `{tag}` out of the pattern, or put it in front of the completion "
                "before it is matched.",
                headline=f"Your reward looks for `{tag}` in completions, but it is in the prompt.",
            )
    return None


def _opened(trainer: Any, whole: Played) -> str | None:
    """The opening tag that every prompt of the batch ends with, as the model is given it."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    ids, seen = whole.inputs["prompt_ids"], whole.inputs["prompt_mask"].bool()
    texts = [tokenizer.decode(row[keep][-TAIL:]) for row, keep in zip(ids, seen, strict=True)]
    found = {match[0].strip() if (match := OPENING_TAG.search(text)) else "" for text in texts}
    return found.pop() or None if len(found) == 1 else None


def _with(tag: str, completion: Any) -> Any:
    if isinstance(completion, str):
        return tag + completion
    first, *others = completion
    return [{**first, "content": f"{tag}{first.get('content') or ''}"}, *others]


def _rows(trainer: Any) -> list[tuple[str, str]]:
    """Prompt and gold of the first rows; none where the data names no gold or is a stream."""
    data, gold = trainer.train_dataset, gold_names(trainer)
    names = [one for one in gold if one in (getattr(data, "column_names", None) or ())]
    if not names or not hasattr(data, "__getitem__"):
        return []
    some = [data[at] for at in range(min(ROWS, len(data)))]
    return [(_text(row["prompt"]), plain(row[names[0]])) for row in some]


def _text(prompt: Any) -> str:
    """Messages as lines, each in front of the next."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(message.get("content") or "") for message in prompt)


def _questions(texts: Sequence[str]) -> list[str]:
    """The last lines of each, as few as make most of them differ; empty where none do."""
    for lines in range(1, LINES + 1):
        ends = ["\n".join(text.rstrip("\n").split("\n")[-lines:]) for text in texts]
        if len(set(ends)) > len(ends) / 2:
            return ends
    return [""] * len(texts)


def _behind(text: str, question: str, answer: str) -> bool:
    before = text[: text.rfind(question)] if question else ""
    return bool(answer) and bool(
        re.search(re.escape(question.strip()) + r"\s*" + re.escape(answer) + r"(?!\w)", before)
    )


def _unearned(text: str, *examples: str, expected: str, fix: str, headline: str) -> StageFound:
    found = departs("rewards", text, *examples, fix=fix)
    found = replace(found, by_chance=UNLIKELY, direct=True, given=True)
    return replace(found, expected=expected, headline=headline)
