"""Right answers in the run's own form that earn on some prompts, always, what wrong ones earn.

Most rewards want a form of their own (`answer: 7`), which nothing here knows. It shows in the run:
what stands around gold in completions that hold it. Where answers in one form are paid whenever
they are right on some prompts, and never on others, their text is read wrongly there.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from flatline.hypotheses.answers import ENDED, ENDINGS, SHORT, looked_at, same_answer
from flatline.hypotheses.groups import EQUAL
from flatline.trace import Trace

FEWEST = 3
"""Different gold answers of each kind."""
MIXED = 0.1
"""Share of the prompts on which right answers may be paid now and then: a judge with moods."""

Form = tuple[str, str]
"""What stands before the answer, and behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaid:
    """What was seen of it."""

    form: str
    """With `{}` for the answer."""
    paid: list[str]
    """Gold answers that are always paid."""
    unpaid: list[str]
    """Gold answers that never are."""
    right_pay: float
    wrong_pay: float
    rows: list[int]
    """Some rows that are right and unpaid, one of each such prompt."""
    answers: int
    """Right answers that are unpaid."""
    prompts: int
    """On how many prompts."""


@dataclass(slots=True)
class _Prompt:
    gold: str
    right: list[int]
    """Rows that give it in the form."""
    wrong: list[int]
    """Rows that give another answer in the form."""
    every: list[int]


def unpaid_in_form(trace: Trace) -> Unpaid | None:
    """None where right answers are paid alike on all prompts, or where that cannot be told."""
    table = trace.rollouts
    if any(name not in table for name in ("completion", "gold", "prompt_id", "reward")):
        return None
    reward = table["reward"]
    rows = [row for row in looked_at(trace).tolist() if np.isfinite(reward[row])]
    if "finish" in table:
        rows = [row for row in rows if table["finish"][row] in ENDED]
    rows = [row for row in rows if table["completion"][row] and table["gold"][row]]
    said = {row: ENDINGS.sub("", str(table["completion"][row])).strip() for row in rows}
    form = _form(trace, said)
    if form is None:
        return None
    prompts = list(_by_prompt(trace, said, form).values())
    return _verdict(reward, form, prompts) if prompts else None


def _verdict(reward: np.ndarray, form: Form, prompts: list[_Prompt]) -> Unpaid | None:
    wrong_pay = float(np.median([reward[row] for one in prompts for row in one.wrong]))
    above = {row for one in prompts for row in one.every if reward[row] > wrong_pay + EQUAL}
    paid = [one for one in prompts if above.issuperset(one.right)]
    unpaid = [one for one in prompts if above.isdisjoint(one.every)]
    golds, lost = {one.gold for one in paid}, {one.gold for one in unpaid}
    if min(len(golds), len(lost)) < FEWEST or golds & lost:
        return None
    if len(paid) + len(unpaid) < (1 - MIXED) * len(prompts):
        return None
    rows = [row for one in unpaid for row in one.right]
    if any(reward[row] < wrong_pay - EQUAL for row in rows):
        return None
    return Unpaid(
        form=f"{form[0]}{{}}{form[1]}",
        paid=sorted(golds),
        unpaid=sorted(lost),
        right_pay=min(float(reward[row]) for one in paid for row in one.right),
        wrong_pay=wrong_pay,
        rows=[one.right[0] for one in unpaid],
        answers=len(rows),
        prompts=len(unpaid),
    )


def _form(trace: Trace, said: dict[int, str]) -> Form | None:
    """In which gold is given on most prompts."""
    ids, golds = trace.rollouts["prompt_id"], trace.rollouts["gold"]
    seen: dict[Form, set[str]] = defaultdict(set)
    for row, text in said.items():
        found = _word(str(golds[row]).strip()).findall(text)
        before, between, behind = text.partition(str(golds[row]).strip())
        if len(found) == 1 and between and len(before) + len(behind) <= SHORT:
            seen[before, behind].add(str(ids[row]))
    counts = Counter({form: len(prompts) for form, prompts in seen.items()})
    best = counts.most_common(1)
    return best[0][0] if best and best[0][1] >= 2 * FEWEST else None


def _by_prompt(trace: Trace, said: dict[int, str], form: Form) -> dict[str, _Prompt]:
    """Prompts with right answers and with wrong ones in the form."""
    ids, golds = trace.rollouts["prompt_id"], trace.rollouts["gold"]
    found: dict[str, _Prompt] = {}
    before, behind = form
    for row, text in said.items():
        gold = str(golds[row]).strip()
        one = found.setdefault(str(ids[row]), _Prompt(gold, [], [], []))
        one.every.append(row)
        answer = text[len(before) : len(text) - len(behind)]
        if text == f"{before}{answer}{behind}" and 0 < len(answer) <= SHORT:
            (one.right if same_answer(answer, gold) else one.wrong).append(row)
    return {name: one for name, one in found.items() if one.right and one.wrong}


@lru_cache(maxsize=1024)  # all rollouts of a group have one
def _word(gold: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(gold)}(?!\w)")
