"""Pieces of the right answer, or nothing at all, that are paid like the right answer.

Where a reward looks for the answer in gold instead of for gold in the answer, a few letters of it
are enough, and so is an empty completion. Such completions give no answer that anybody would accept
as another way to say it: they break off inside a word.
"""

import re
from dataclasses import dataclass

import numpy as np

from flatline.hypotheses.answers import ENDED, ENDINGS, looked_at, same_answer
from flatline.hypotheses.groups import EQUAL
from flatline.live.texts import marked_answer
from flatline.trace import Trace

FEWEST = 3
"""Prompts whose right answers are paid, and prompts of pieces."""
NEARLY_ALL = 0.9
"""Share of the pieces that must earn it, and of other wrong answers that must not."""
LONG = 4
"""Characters of gold from which on a piece of it is no answer."""
LONGEST = 200
"""Characters of a completion that is nothing but an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What was seen of it."""

    source: str
    """What pays, in words."""
    pay: float
    """What a right answer earns, and a piece of it as well."""
    rows: list[int]
    """Of the pieces."""
    prompts: int
    """How many prompts these are of."""
    empty: int
    """How many are empty."""
    wrong: int
    """Other wrong answers, which earn less."""


def paid_pieces(trace: Trace) -> Pieces | None:
    """None where pieces of the right answer earn less, or where that cannot be told."""
    table = trace.rollouts
    if any(name not in table for name in ("completion", "gold", "prompt_id", "reward")):
        return None
    right, piece, wrong = _kinds(trace)
    if not wrong or min(_prompts(trace, right), _prompts(trace, piece)) < FEWEST:
        return None
    parts = {f"`{name}`": values for name, values in trace.parts().items()}
    for source, pay in {"the reward": table["reward"], **parts}.items():
        usual = float(np.median(pay[right]))
        earn = pay >= usual - EQUAL
        gifts = [row for row in piece if earn[row]]
        surely = earn[right].mean() >= NEARLY_ALL and len(gifts) >= NEARLY_ALL * len(piece)
        if surely and (pay[wrong] < usual - EQUAL).mean() >= NEARLY_ALL:
            return Pieces(
                source=source,
                pay=usual,
                rows=gifts,
                prompts=_prompts(trace, gifts),
                empty=sum(not _said(trace, row) for row in gifts),
                wrong=len(wrong),
            )
    return None


def _kinds(trace: Trace) -> tuple[list[int], list[int], list[int]]:
    """Rows that are right, that are a piece of it, and that are neither and do not hold it."""
    table = trace.rollouts
    right, piece, wrong = [], [], []
    for row in looked_at(trace).tolist():
        ended = "finish" not in table or table["finish"][row] in ENDED
        gold, said = str(table["gold"][row] or "").strip(), _said(trace, row)
        if not ended or len(gold) < LONG or len(said) > LONGEST or np.isnan(table["reward"][row]):
            continue
        if same_answer(said, gold):
            right.append(row)
        elif said.lower() not in gold.lower():
            if gold.lower() not in said.lower():
                wrong.append(row)
        elif not _is_word_of(said, gold):
            piece.append(row)
    return right, piece, wrong


def _said(trace: Trace, row: int) -> str:
    text = ENDINGS.sub("", str(trace.rollouts["completion"][row] or "")).strip()
    return (marked_answer(text) or text).strip()


def _is_word_of(said: str, gold: str) -> bool:
    """Whether it stands in gold as words of their own, which may be another name of the same."""
    word = re.compile(rf"(?<!\w){re.escape(said)}(?!\w)", re.IGNORECASE)
    return bool(said) and word.search(gold) is not None


def _prompts(trace: Trace, rows: list[int]) -> int:
    return len(set(trace.rollouts["prompt_id"][rows].tolist()))
