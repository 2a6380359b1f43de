"""What the numbers of a log say, beside any cause: short statements that the columns carry.

A remark is no alarm. It says how a column goes, which part of the reward made the gain, what a
column implies about a setting, how far the run got. Nothing is told that chance alone may have
made: `shape.py` says how that is kept.
"""

import warnings
from collections.abc import Callable, Iterable

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.logs import imported
from flatline.remarks.beside import beside
from flatline.remarks.columns import Column, columns_of
from flatline.remarks.effort import effort
from flatline.remarks.event import event
from flatline.remarks.implied import implied
from flatline.remarks.moving import moving
from flatline.remarks.outage import Outage, outages_of, spans, without
from flatline.remarks.parts import parts
from flatline.remarks.plan import plan
from flatline.remarks.remark import Remark
from flatline.trace import Trace

__all__ = ["SHOWN", "remarks_of"]

SHOWN = 14
"""Remarks that are shown where not everything is asked for."""
_About = Callable[[Trace, list[Column]], Iterable[Remark]]
_ABOUT: tuple[_About, ...] = (parts, moving, beside, effort, implied, event)


def remarks_of(trace: Trace) -> tuple[str, ...]:
    """Of a log, the most important first; a run with rollouts is read rollout by rollout."""
    if not imported(trace) or len(trace.rollouts) or not len(trace.steps):
        return ()
    # A log may hold any number: what trips over it must not cost the user the diagnosis.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        columns = columns_of(trace)
        reward = next((one for one in columns if one.name == "reward"), None)
        kept, told = trace, []
        if reward is not None and (outages := outages_of(reward)):
            told.append(Remark(0.5, _left_out(outages, reward)))
            kept = without(trace, outages, reward)
            columns = columns_of(kept)
        told += [remark for about in _ABOUT for remark in _told(about, kept, columns)]
        told += _told(plan, trace, columns)  # which says what steps a log lacks
    return tuple(dict.fromkeys(remark.text for remark in sorted(told, key=lambda one: one.order)))


def _left_out(outages: list[Outage], reward: Column) -> str:
    """That what is said of levels does not hold in some steps."""
    out = spans(outages, reward)
    return f"The reward is gone in {out}; what else is said here leaves these steps out."


def _told(about: _About, trace: Trace, columns: list[Column]) -> list[Remark]:
    try:
        return list(about(trace, columns))
    except (NotRecorded, ArithmeticError, ValueError, np.linalg.LinAlgError):
        return []
