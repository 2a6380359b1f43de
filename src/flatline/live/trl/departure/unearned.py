"""Pay that no answer earned: a reward model that is read at the wrong label, and prompts that hold
their own question with its answer.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flatline.live.stage_found import StageFound, departs
from flatline.live.trl.departure.asked_again import UNLIKELY, plain
from flatline.live.trl.departure.data import _name
from flatline.live.trl.gold import gold_names

ROWS = 64
"""Rows of the data that are read."""
FEWEST = 8
"""Rows that must hold their answer."""
MOST, SELDOM = 0.5, 0.1
"""Share of rows that hold their own answer behind their question, and the answer of another row."""
LINES = 4
"""Lines at the end of a prompt among which its question is looked for."""


def judge_labels(trainer: Any) -> StageFound | None:
    """TRL pays the first logit of a reward model: right where it has one label."""
    for at, function in enumerate(trainer.reward_funcs):
        config = getattr(function, "config", None)
        labels = getattr(config, "num_labels", 1)
        if labels > 1:
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
    data, gold = trainer.train_dataset, gold_names(trainer)
    names = [one for one in gold if one in (getattr(data, "column_names", None) or ())]
    if not names or not hasattr(data, "__getitem__"):
        return None
    rows = [data[at] for at in range(min(ROWS, len(data)))]
    texts = [_text(row["prompt"]) for row in rows]
    answers = [plain(row[names[0]]) for row in rows]
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
