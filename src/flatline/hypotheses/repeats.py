"""Completions that a group holds more than once."""

import numpy as np

from flatline.hypotheses.base import Evidence
from flatline.trace import Trace


def repeats(trace: Trace, usable: np.ndarray) -> list[tuple[int, int]]:
    """Rows that say what an earlier row of their group said: the first of these, and they.

    Ids that are no text decode to U+FFFD, whatever they are; and other ids may decode to the same
    words, mostly in another number of tokens.
    """
    texts, said = trace.rollouts.coded("completion")
    rows = np.flatnonzero(usable & np.array([_says(text) for text in texts])[said])
    key = np.stack([trace.groups().index[rows], said[rows], _lengths(trace)[rows]])
    _, first, again = np.unique(key, axis=1, return_index=True, return_inverse=True)
    earlier = rows[first][again.reshape(-1)]
    later = earlier != rows
    return list(zip(earlier[later].tolist(), rows[later].tolist(), strict=True))


def said_twice(trace: Trace, first: int, again: int) -> Evidence:
    """Two of them that are paid differently."""
    reward, number = trace.rollouts["reward"], trace.rollouts["rollout"]
    return Evidence.of(
        trace,
        again,
        f"rollouts {int(number[first])} and {int(number[again])} are the same text and earn "
        f"{reward[first]:.3g} and {reward[again]:.3g}",
    )


def _says(text: str | None) -> bool:
    return bool(text) and "\ufffd" not in str(text)


def _lengths(trace: Trace) -> np.ndarray:
    """Tokens of each completion; the same for all where that was not recorded."""
    if "completion_tokens" not in trace.rollouts:
        return np.zeros(len(trace.rollouts))
    return np.asarray(np.nan_to_num(trace.rollouts["completion_tokens"], nan=-1.0))
