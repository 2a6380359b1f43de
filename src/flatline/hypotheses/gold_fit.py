"""Does gold belong to its question?

A policy that knows something gives its own row's gold more often than that of any other row. One
that is sure of its answers, gives answers of the right kind and other ones to other questions, and
yet meets its own gold no more often than anybody else's, was given the gold of other questions.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.answers import judge, same_answer
from flatline.live.stage_found import StageFound, departs
from flatline.stats import cluster_mean
from flatline.trace import Trace

PROMPTS = 24
"""Prompts with answers that can be read."""
MOST = 100
"""Prompts that are compared with each other."""
ANSWERS = 4
"""Answers to a prompt."""
SURE = 0.5
"""Share of the answers to a prompt that agree with the most common one, on average."""
OF_THE_KIND = 0.8
"""Share of the most common answers that are some row's gold."""
OFTEN, MANY = 0.5, 8
"""The same share where they are never their own row's, and how many different ones these must be:
what a policy gets wrong need not be anybody's gold."""
DIFFERENT = 4
"""Different answers among the most common ones."""
ABOVE_CHANCE = 0.2
"""By how much more often its own gold must be met, at least, for a policy to know something."""
UNLIKELY = 1e-3
"""Stands for a policy that learnt something else surely."""
HEADLINE = "Your gold answers do not belong to their questions."


def foreign_gold(trace: Trace) -> StageFound | None:
    """None where gold belongs to its rows, or where that cannot be told."""
    return _of_whole_data(trace) or _of_seen_rows(trace)


def _of_whole_data(trace: Trace) -> StageFound | None:
    """As the recorder saw it, which knows the gold of rows that the run never came to."""
    seen = trace.run.get("gold_of_data")
    if seen is None or seen["prompts"] < PROMPTS or seen["different"] < DIFFERENT:
        return None
    never = seen["own"] == 0 and seen["different"] >= MANY
    if seen["of_data"] < (OFTEN if never else OF_THE_KIND) * seen["prompts"]:
        return None
    example = f"{seen['answer']!r} is answered, gold is {seen['gold']!r}"
    return _unless_known(seen["own"], seen["prompts"], seen["chance"], example)


def _unless_known(own: int, prompts: int, chance: float, example: str) -> StageFound | None:
    """None where its own row's gold is met more often than anybody's."""
    met = cluster_mean(np.arange(prompts) < own, np.arange(prompts))
    return None if met.high >= chance + ABOVE_CHANCE else _found(own, prompts, chance, example)


def _of_seen_rows(trace: Trace) -> StageFound | None:
    try:
        judged = judge(trace)
    except NotRecorded:
        return None
    answers: dict[str, list[str]] = {}
    for prompt, answer in zip(judged.prompt.tolist(), judged.answer, strict=True):
        answers.setdefault(prompt, []).append(answer)
    gold = dict(zip(judged.prompt.tolist(), judged.gold, strict=True))
    common = {
        prompt: Counter(said).most_common(1)[0]
        for prompt, said in answers.items()
        if len(said) >= ANSWERS
    }
    common = dict(list(common.items())[:MOST])
    said = {prompt: text for prompt, (text, _) in common.items()}
    sure = [count / len(answers[prompt]) for prompt, (_, count) in common.items()]
    if len(said) < PROMPTS or sum(sure) < SURE * len(said) or not _of_the_kind(said, gold):
        return None
    own = [same_answer(text, gold[prompt]) for prompt, text in said.items()]
    others = [same_answer(a, gold[q]) for p, a in said.items() for q in said if p != q]
    chance = sum(others) / len(others)
    prompt = list(said)[own.index(False) if False in own else 0]
    example = f"{said[prompt]!r} is answered, gold is {gold[prompt]!r}"
    return _unless_known(sum(own), len(own), chance, example)


def _of_the_kind(said: dict[str, str], gold: dict[str, str]) -> bool:
    golds = {one.strip().lower() for one in gold.values()}
    fits = [text.strip().lower() in golds for text in said.values()]
    different = len({text for text, fit in zip(said.values(), fits, strict=True) if fit})
    return sum(fits) >= OF_THE_KIND * len(fits) and different >= DIFFERENT


def _found(own: int, prompts: int, chance: float, example: str) -> StageFound:
    found = departs(
        "rewards",
        f"The policy is sure of its answers, and they equal the gold of their own row for {own} of "
        f"{prompts} prompts: as often as the gold of any other row ({chance:.0%}).",
        example,
        fix="Compare questions and gold of some rows by hand: look for a filter, a sort or a "
        "shuffle that was applied to one column alone. If they fit, the model knows nothing here.",
    )
    expected = "its own gold more often than another's"
    found = replace(found, by_chance=UNLIKELY, given=True, direct=True)
    return replace(found, expected=expected, headline=HEADLINE)
