"""Which part of the reward says that an answer is right: as the user named it, else by its values.

A part that pays nothing or one amount may say right or wrong, and where it is the only one of that
kind and what the reward follows most, it does. So it does where it is the only one that pays no
completion without the gold answer, whatever the reward follows. What it is called says nothing:
people call such a function `equation_reward_func`, and one for form `correct_format`. Where values
leave it open, the user is asked, and what hangs on the answer is unknown until then.
"""

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.groups import within_correlation
from flatline.hypotheses.paid_gold import pays_gold_alone
from flatline.tasks.base import ANSWER, COMBINED
from flatline.trace import Trace
from flatline.trace.memo import once

NO_PART = "rollouts.parts (one that says right or wrong)"
UNDECIDED = "settings.correct"
"""What is lacking where no part could say it, and where values leave open which does."""
FOLLOWS = 0.5
"""Correlation of the reward with a part, inside groups, that makes it the reward's own business."""


@once
def right_part(trace: Trace) -> str | None:
    """Its name; None where no part could be it, or where that is open."""
    parts = trace.parts()
    told = ANSWER if of_our_task(trace) else trace.settings.get("correct")
    if told in parts:
        return str(told)
    found = candidates(trace)
    if len(found) == 1 and _decides(trace, found[0]):
        return found[0]
    of_gold = [name for name in found if pays_gold_alone(trace, parts[name])]
    return of_gold[0] if len(of_gold) == 1 else None


def needed_part(trace: Trace) -> str:
    """The same, where nothing can be determined without it."""
    name = right_part(trace)
    if name is None:
        raise NotRecorded(UNDECIDED if candidates(trace) else NO_PART)
    return name


@once
def candidates(trace: Trace) -> list[str]:
    """Parts that could be it, by their values; of parts that are always the same, the first."""
    found: list[str] = []
    parts = trace.parts()
    for name, values in parts.items():
        again = any(np.array_equal(values, parts[other], equal_nan=True) for other in found)
        if two_valued(values) and not again:
            found.append(name)
    return found


def of_our_task(trace: Trace) -> bool:
    """Whether the parts are those of flatline's own tasks, whose names have a meaning."""
    return {ANSWER, COMBINED} <= trace.parts().keys()


def single_parts(trace: Trace) -> dict[str, np.ndarray]:
    """The parts without the sum that flatline's own tasks have among them."""
    parts = trace.parts()
    return {n: v for n, v in parts.items() if not (n == COMBINED and of_our_task(trace))}


def question(trace: Trace) -> str:
    """What only the user can say; empty where nothing is open."""
    found = candidates(trace)
    if not found or right_part(trace) is not None:
        return ""
    names = found if len(found) > 1 else list(single_parts(trace))
    named = ", ".join(f"`{name}`" for name in names)
    return (
        f"Which of {named} says that an answer is right? Type correct={found[0]!r}, or whichever "
        f"it is (`flatline diagnose --correct {found[0]}`)."
    )


def _decides(trace: Trace, name: str) -> bool:
    """Whether the reward follows this part, and none more. What pays for form may have two values
    as well, beside a part that says how right an answer is."""
    parts, reward = single_parts(trace), trace.rollouts["reward"]
    if len(parts) == 1:
        pairs = np.stack([parts[name], reward])[:, np.isfinite(parts[name])]
        return len(np.unique(pairs, axis=1).T) <= 2
    group = trace.groups().index
    follows = {part: within_correlation(reward, v, group).value for part, v in parts.items()}
    best = max(np.nan_to_num(value, nan=-1.0) for value in follows.values())
    return bool(follows[name] >= max(FOLLOWS, best))


def two_valued(values: np.ndarray) -> bool:
    """Nothing or less for wrong, one amount for right. What is always 0 or always 1 may be it: no
    answer, or every answer, was right so far."""
    seen = np.unique(values[np.isfinite(values)])
    if len(seen) == 1:
        return bool(seen[0] in (0.0, 1.0))
    return len(seen) == 2 and bool(seen[0] <= 0 < seen[1])
