"""What happens to several columns at once and passes: one bad update, and what it did.

A column jumps where its next rows are far from those before, in what those differ by. Noise makes
one column do so now and then; it does not make several do so at the same row. Where several do,
less is asked of the others.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flatline.remarks.columns import Column, listed, once, sentence
from flatline.remarks.remark import Remark
from flatline.trace import Trace

BEFORE, AFTER, NOISE = 8, 3, 20
"""Rows before and after a jump that are compared, and rows before it that show the noise."""
FAR, SMALL = 5.0, 0.02
"""Standard deviations that a jump is, at least; these are no smaller share of its whole range."""
JOINS = 4.0
"""The same for a column beside those that jumped."""
SEVERAL = 3
"""Columns that must jump, within `NEAR` rows."""
NEAR = 1
BACK = 0.9
"""Share of a jump that is undone where a column is back."""
TOLD = 6
"""Columns that are told."""


class Jump(NamedTuple):
    """What a column does at a row."""

    column: Column
    at: int
    """The first row that is far off."""
    before: float
    most: float
    """Its level before, and the value farthest from it soon after."""
    back: int | None
    """The row from which on it is back; None where it is not."""
    far: float
    """How far it jumps, in what it is off otherwise."""

    def __str__(self) -> str:
        word = "rises" if self.most > self.before else "falls"
        one = self.column
        return f"{one.subject} {word} from {one.bare(self.before)} to {one.number(self.most)}"


def event(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """The largest event that passes, as one story."""
    jumps = jumps_of(trace, columns)
    passed = [one for one in jumps if one.back is not None and one.column.name != "learning_rate"]
    if len(passed) >= SEVERAL - 1:
        yield Remark(3, _told(jumps, trace.steps["step"]))


def jumps_of(trace: Trace, columns: list[Column]) -> list[Jump]:
    """What jumps at the row at which most does; nothing where that is no event."""
    rows = len(trace.steps["step"])
    whole = [one for one in once(columns) if not one.minor and len(one.shape) == rows]
    if rows < NOISE + BEFORE or len(whole) < SEVERAL:
        return []
    far = np.stack([_far(one) for one in whole])
    hit = np.pad(far > FAR, ((0, 0), (NEAR, NEAR)))
    many = _windows(hit, 2 * NEAR + 1).any(axis=-1).sum(axis=0)
    if many.max() < SEVERAL:
        return []
    # Of neighbouring rows, the one at which most is far off.
    most = np.flatnonzero(many == many.max())
    at = int(most[far[:, most].sum(axis=0).argmax()])
    near = far[:, max(at - NEAR, 0) : at + NEAR + 1].max(axis=1)
    return [_jump(one, at, float(off)) for one, off in zip(whole, near, strict=True) if off > JOINS]


def _scaled(column: Column) -> np.ndarray:
    values = column.shape.values
    return np.asarray(np.log(values) if values.min() > 0 else values)


def _far(column: Column) -> np.ndarray:
    """How far the rows from each one on are from those before it; 0 where that is not known."""
    values, rows = _scaled(column), len(column.shape)
    found = np.zeros(rows)
    if column.shape.constant or column.shape.rare or column.shape.counts_up:
        return found
    least = SMALL * float(np.ptp(values))
    usual = np.maximum(_windows(values, NOISE).std(axis=1)[: -AFTER - 1], least)
    before = np.median(_windows(values, BEFORE), axis=1)[NOISE - BEFORE : -AFTER - 1]
    after = np.median(_windows(values, AFTER), axis=1)[NOISE:-1]
    found[NOISE:-AFTER] = np.abs(after - before) / usual
    return found


def _windows(values: np.ndarray, rows: int) -> np.ndarray:
    """So many rows one after the other, for every row that they may begin with."""
    return np.lib.stride_tricks.sliding_window_view(values, rows, axis=-1)


def _jump(column: Column, at: int, far: float) -> Jump:
    values, scaled = column.shape.values, _scaled(column)
    before = slice(at - BEFORE - NEAR, at - NEAR)
    soon = np.arange(at - NEAR, min(at + AFTER + NEAR, len(values)))
    level = float(np.median(scaled[before]))
    off = np.abs(scaled[soon] - level)
    first, most = int(soon[off >= off.max() / 2][0]), int(soon[off.argmax()])
    later = range(most + 1, len(values) - AFTER)
    rest = _medians(scaled, 2 * AFTER)[most + 1 : len(values) - AFTER]
    back = np.flatnonzero((rest - level) / (scaled[most] - level) <= 1 - BACK)
    returned = _returned(scaled, later[int(back[0])], level, off.max()) if len(back) else None
    return Jump(column, first, float(np.median(values[before])), float(values[most]), returned, far)


def _medians(values: np.ndarray, rows: int) -> np.ndarray:
    """Of so many rows from each one on; of those that are left at the end."""
    whole = np.median(_windows(values, rows), axis=1)
    short = [np.median(values[at:]) for at in range(len(whole), len(values))]
    return np.concatenate([whole, short])


def _returned(scaled: np.ndarray, row: int, level: float, far: float) -> int:
    """The first row that is back itself: a median of several is, some rows before."""
    near = np.flatnonzero(np.abs(scaled[row : row + 2 * AFTER] - level) <= far / 2)
    return row + int(near[0])


def _told(jumps: list[Jump], step: np.ndarray) -> str:
    """What came first, what followed, and what is back."""
    jumps = sorted(jumps, key=lambda one: one.column.words.rank)[:TOLD]
    rows = sorted({one.at for one in jumps})
    clauses = []
    for at in rows:
        told = ", ".join(str(one) for one in jumps if one.at == at)
        when = f"at step {step[at]:g}" if at == rows[0] else f"from step {step[at]:g} on"
        clauses.append(f"{when} {told}")
    # A schedule that passes a level again has not come back to it.
    jumps = [one for one in jumps if one.column.name != "learning_rate"]
    back = [f"{one.column.subject} by step {step[one.back]:g}" for one in jumps if one.back]
    lasting = [one.column.subject for one in jumps if one.back is None]
    more = f", {listed(lasting)} not wholly" if lasting else ""
    told = listed(back).replace(" by step", " is back by step", 1)
    return sentence([*clauses, f"this passes: {told}{more}"])
