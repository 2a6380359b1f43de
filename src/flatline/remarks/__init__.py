"""What the numbers of a log say, beside any cause: short statements that the columns carry.

A remark is no alarm. It says which part of the reward made the gain, what a column implies about a
setting, how far the run got. Nothing is told that chance alone may have made: a movement counts
where it is `SURE` times as large as its interval is wide, since many columns are looked at.
"""

import warnings
from collections.abc import Callable, Iterable

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.logs import imported
from flatline.remarks.behaviour import behaviour
from flatline.remarks.implied import implied
from flatline.remarks.parts import parts
from flatline.remarks.plan import plan
from flatline.trace import Trace

__all__ = ["remarks_of"]

_ABOUT: tuple[Callable[[Trace], Iterable[str]], ...] = (parts, behaviour, implied, plan)


def remarks_of(trace: Trace) -> tuple[str, ...]:
    """Of a log; a run with rollouts is read rollout by rollout instead."""
    if not imported(trace) or len(trace.rollouts) or not len(trace.steps):
        return ()
    return tuple(text for about in _ABOUT for text in _told(about, trace))


def _told(about: Callable[[Trace], Iterable[str]], trace: Trace) -> list[str]:
    # A log may hold any number: what trips over it must not cost the user the diagnosis.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return list(about(trace))
        except (NotRecorded, ArithmeticError, ValueError, np.linalg.LinAlgError):
            return []
