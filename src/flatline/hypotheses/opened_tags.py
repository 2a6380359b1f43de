"""A tag that prompts end with, so that no completion begins with it, and a reward that never pays.

The chat template of a reasoning model may open `<think>` itself. The completion then begins inside
the thought, and a function that wants to see `<think>` in it pays nobody.
"""

import re
from dataclasses import dataclass

import numpy as np

from flatline.hypotheses.answers import ENDINGS, given_answer, same_answer
from flatline.live.texts import OPENING_TAG
from flatline.trace import Trace

ALWAYS = 0.9
"""Share of the prompts that must end with it: it comes from the template."""
CLOSED = 3
"""Prompts on which a completion closes it."""
FEWEST = 32
"""Rollouts that a function must have judged and paid nothing."""
LOOKED_AT = 2000
"""Rollouts that are read, evenly over the run."""
FORM = re.compile("format|tag|think|reason|struct", re.IGNORECASE)
"""In the name of a part of the reward that is about the form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What was seen of it."""

    tag: str
    """With its brackets."""
    unpaid: tuple[str, ...]
    """Parts of the reward that no rollout earns anything of."""
    about_form: bool
    """Whether one of these is called after the form."""
    right: tuple[int, ...]
    """Rows that are right behind the closing tag and earn nothing of these."""
    prompts: int
    """How many prompts these are."""


def opened_by_prompts(trace: Trace) -> Opened | None:
    """None where prompts open no tag, where completions open it themselves or close none, and where
    everything is paid at times."""
    table = trace.rollouts
    if any(name not in table for name in ("prompt", "completion", "prompt_id")):
        return None
    unpaid = _never_paid(trace)
    rows = np.unique(np.linspace(0, len(table) - 1, min(len(table), LOOKED_AT)).astype(int))
    said = [str(table["completion"][row] or "") for row in rows]
    tag = _tag([str(table["prompt"][row] or "") for row in rows])
    if not unpaid or tag is None or any(f"<{tag}>" in text for text in said):
        return None
    ids, ends = table["prompt_id"], f"</{tag}>"
    closing = [row for row, text in zip(rows.tolist(), said, strict=True) if ends in text]
    if len({str(ids[row]) for row in closing}) < CLOSED:
        return None
    right = tuple(row for row in closing if _right(trace, row, ends))
    return Opened(
        tag=f"<{tag}>",
        unpaid=unpaid,
        about_form=any(FORM.search(name) for name in unpaid),
        right=right,
        prompts=len({str(ids[row]) for row in right}),
    )


def _never_paid(trace: Trace) -> tuple[str, ...]:
    parts = sorted(trace.parts().items())
    judged = [(name, part[np.isfinite(part)]) for name, part in parts]
    return tuple(name for name, part in judged if len(part) >= FEWEST and part.max() <= 0)


def _tag(prompts: list[str]) -> str | None:
    """What practically all of them end with."""
    found = [match[1] if (match := OPENING_TAG.search(text)) else "" for text in prompts]
    names = set(found) - {""}
    alike = len(names) == 1 and sum(map(bool, found)) >= ALWAYS * len(found)
    return names.pop() if alike else None


def _right(trace: Trace, row: int, ends: str) -> bool:
    """Whether what stands behind the closing tag is the gold answer, marked or alone."""
    if "gold" not in trace.rollouts or not trace.rollouts["gold"][row]:
        return False
    text = ENDINGS.sub("", str(trace.rollouts["completion"][row])).rsplit(ends, 1)[-1]
    marked = given_answer(text)
    return same_answer(marked[1] if marked else text.strip(), str(trace.rollouts["gold"][row]))
