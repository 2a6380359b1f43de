"""What somebody else's log leaves open. A hypothesis must not take it for an answer."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow.compute as pc

from flatline.errors import NotRecorded
from flatline.trace import Trace
from flatline.trace.frames import Frame
from flatline.trace.rows import plain


def imported(trace: Trace) -> bool:
    """Whether it was read from the log of another tool."""
    return str(trace.run.get("source") or "").startswith("import")


def setting(trace: Trace, name: str) -> Any:
    """A setting of the run. `attach` reads them all, so its None is an answer; that of a log, or of
    somebody's own recorder, says nothing and raises `NotRecorded`."""
    value = trace.settings.get(name)
    if value is None and trace.run.get("source") != "attach":
        raise NotRecorded(f"settings.{name}")
    return value


def in_steps(trace: Trace, looked_at: Collection[int]) -> str:
    """` in 8 of 100 steps`, where token detail of more was recorded than was looked at."""
    every = len(trace.token_steps)
    return f" in {len(looked_at)} of {every} steps" if len(looked_at) < every else ""


def spacing(step: np.ndarray) -> float:
    """Steps that a row stands for; a trainer may log the mean of several."""
    trained = np.unique(step[step > 0])
    return float(np.median(np.diff(trained))) if len(trained) > 1 else 1.0


def rows_in_words(rows: int, step: np.ndarray) -> str:
    """`50 steps`, or `50 rows 5 steps apart`: means of five, or every fifth, a log seldom says."""
    every = spacing(step)
    return f"{rows} steps" if every <= 1 else f"{rows} rows {every:g} steps apart"


def not_numbers(frame: Frame, column: str) -> np.ndarray:
    """Recorded values that are NaN or infinite; what was not recorded is neither."""
    found = frame.arrow(column)
    return plain(pc.invert(pc.is_finite(found)))
