"""Parts of the reward that are the length of the completion, whatever they are called."""

import numpy as np

from flatline.hypotheses.right import single_parts
from flatline.rollout.record import Finish
from flatline.trace import Trace
from flatline.trace.memo import once

ENDED_BY_LENGTH = ("length", "turn_length")
"""What rollouts that a limit cut off are said to end with."""
OF_EPISODES = tuple(str(one) for one in Finish)
"""What a player of several turns says that an episode ended with."""
IS_LENGTH = 0.9
"""Correlation of a part with length from which on it pays length itself. Seen: a part that counts
words has 0.93 and more with tokens in each of 8 small batches, other parts at most 0.57."""
FEWEST = 3
"""Different values of the part, of completions that ended: one for the end itself has one."""


def cut_off(trace: Trace) -> np.ndarray:
    """Whether a limit ended each rollout."""
    return np.isin(trace.rollouts["finish"].astype(str), ENDED_BY_LENGTH)


def tells_limits(trace: Trace) -> bool:
    """Whether the sampler says which limit ended an episode, and not only that tokens ran out."""
    return bool(np.isin(trace.rollouts["finish"].astype(str), OF_EPISODES).any())


@once
def length_parts(trace: Trace) -> frozenset[str]:
    """Their names. A part that only pays for an end goes with length as well, so it must be so
    among completions that ended as among all."""
    every = np.ones(len(trace.rollouts), dtype=bool)
    ended = ~cut_off(trace) if "finish" in trace.rollouts else every
    measures = _measures(trace)
    return frozenset(
        name
        for name, values in single_parts(trace).items()
        if any(all(_goes_with(values, each, of) for of in (ended, every)) for each in measures)
    )


def _goes_with(part: np.ndarray, length: np.ndarray, rows: np.ndarray) -> bool:
    known = rows & np.isfinite(part) & np.isfinite(length)
    part, length = part[known], length[known]
    if len(np.unique(part)) < FEWEST or not np.ptp(length) > 0:
        return False
    return bool(abs(np.corrcoef(part, length)[0, 1]) > IS_LENGTH)


def _measures(trace: Trace) -> list[np.ndarray]:
    """Tokens of each completion and characters, as far as they were recorded."""
    found = []
    if "completion_tokens" in trace.rollouts:
        found.append(trace.rollouts["completion_tokens"].astype(float))
    if "completion" in trace.rollouts:
        texts = trace.rollouts["completion"]
        found.append(np.array([np.nan if text is None else float(len(text)) for text in texts]))
    return found
