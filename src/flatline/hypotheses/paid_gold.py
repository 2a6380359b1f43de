"""Which part of the reward pays for the gold answer, seen from texts and pay alone.

A part that says right or wrong pays no completion in which the gold answer does not stand. One for
form does, sooner or later; and how likely it is that it has not by chance can be counted.
"""

import re
from functools import lru_cache
from math import comb

import numpy as np

from flatline.trace import Trace

BY_CHANCE = 1e-3
"""How likely a part that has nothing to do with gold may be to have paid no completion without."""
MOST_GROUPS = 500
"""Groups of a long run whose texts are read."""


def pays_gold_alone(trace: Trace, values: np.ndarray) -> bool:
    """Whether a part of two values certainly pays completions alone in which gold stands."""
    if "completion" not in trace.rollouts or "gold" not in trace.rollouts:
        return False
    group = trace.groups().index
    texts, golds = trace.rollouts["completion"], trace.rollouts["gold"]
    known = [
        row
        for row in np.flatnonzero(np.isfinite(values) & (group < MOST_GROUPS)).tolist()
        if texts[row] is not None and golds[row]
    ]
    if not known:
        return False
    paid = values[known] == np.nanmax(values)
    holds = np.array([_stands_in(golds[row], texts[row]) for row in known])
    if bool((paid & ~holds).any()):
        return False
    return _by_chance(paid, holds, group[known]) < BY_CHANCE


def _by_chance(paid: np.ndarray, holds: np.ndarray, group: np.ndarray) -> float:
    """How likely it is, group by group, that so many completions drawn without a look at their text
    all hold gold."""
    likely = 1.0
    for each in np.unique(group):
        here = group == each
        size, held, drawn = int(here.sum()), int(holds[here].sum()), int(paid[here].sum())
        likely *= comb(held, drawn) / comb(size, drawn)
    return likely


def _stands_in(gold: str, text: str) -> bool:
    return bool(_as_a_word(_plain(gold)).search(_plain(text)))


@lru_cache(maxsize=1024)  # all rollouts of a group have one
def _as_a_word(gold: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(gold)}(?!\w)")


def _plain(text: str) -> str:
    """Without case and without the commas of large numbers."""
    return text.lower().replace(",", "").strip()
