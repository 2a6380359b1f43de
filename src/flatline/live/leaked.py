"""Prompts that hold their own question with its answer, as an example to learn from.

Read from texts alone: the rows of live data, or the prompts of a recorded run.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from flatline.live.stage_found import StageFound, departs

FEWEST = 8
"""Rows that must hold their answer."""
MOST, BY_CHANCE = 0.5, 0.5
"""Share of rows that hold their own answer behind their question, and how many may hold that of
another row there, of these."""
LINES, WORDS = 4, 12
"""Lines at the end of a prompt among which its question is looked for; words, where it is one."""
OWN = 0.9
"""Share of the prompts that the last words must tell apart to be the question: what it has in
common with the examples beside it is none."""
UNLIKELY = 1e-3
"""Stands for a task in which looking it up is all there is to do."""


def leaked(rows: Sequence[tuple[str, str]]) -> StageFound | None:
    """Of prompts and their gold. A text that the answer is to be found in does not repeat the
    question."""
    texts, answers = [text for text, _ in rows], [answer for _, answer in rows]
    questions = _questions(texts)
    own, other = (
        [_behind(*one) for one in zip(texts, questions, given, strict=True)]
        for given in (answers, [*answers[1:], *answers[:1]])
    )
    if sum(own) < max(FEWEST, MOST * len(rows)) or sum(other) > BY_CHANCE * sum(own):
        return None
    at = own.index(True)
    found = departs(
        "rewards",
        f"{sum(own)} of {len(rows)} prompts hold their own question with the right answer behind "
        "it: it only has to be copied.",
        f"{questions[at][-60:]!r} stands in its prompt, followed by {answers[at][:40]!r}",
        fix="Leave the row itself out of the examples that its prompt is given, unless looking it "
        "up is what is to be learnt.",
    )
    return replace(
        found,
        by_chance=UNLIKELY,
        direct=True,
        given=True,
        expected="questions without their answer",
        headline="Your prompts already contain the answer.",
    )


def _questions(texts: Sequence[str]) -> list[str]:
    """The last lines of each, as few as make most of them differ, or of one line the last words, as
    few as tell nearly all of them apart; empty where none do."""
    for lines in range(1, LINES + 1):
        ends = ["\n".join(text.rstrip("\n").split("\n")[-lines:]) for text in texts]
        if len(set(ends)) > len(ends) / 2:
            whole = [end.strip() == text.strip() for end, text in zip(ends, texts, strict=True)]
            return _last_words(texts) if all(whole) else ends
    return [""] * len(texts)


def _last_words(texts: Sequence[str]) -> list[str]:
    for words in range(2, WORDS + 1):
        ends = [" ".join(text.split()[-words:]) for text in texts]
        if len(set(ends)) >= OWN * len(set(texts)):
            return ends
    return [""] * len(texts)


def _behind(text: str, question: str, answer: str) -> bool:
    before = text[: text.rfind(question)] if question else ""
    return bool(answer) and bool(
        re.search(re.escape(question.strip()) + r"\s*" + re.escape(answer) + r"(?!\w)", before)
    )
