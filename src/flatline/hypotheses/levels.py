"""How the level of a column goes over a run, as far as its raw rows show it: where it begins, where
it turns, where it ends, and at which end it stands.

Levels are means of a tenth of the rows, without the quarter at either end of it. A turn is one that
the column goes back from by more than noise of such means goes, and by a fair share of its whole
way. What is said of a level is asked of all rows that it is said of, the last ones too.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.course import alike, slope
from flatline.stats import rounding_of

SHARE, LEAST, TRIMMED = 10, 8, 4
"""A level is that of so many-th part of the rows, and of so many rows at least; the part of these
that is left out at either end."""
TURN, SURE, SEEMS, SURER = 0.15, 4.0, 7.0, 9.0
"""Share of the whole way that a column goes back where it turns, and standard errors of it; of a
column that nothing else shows to move, to be told as a guess and to be told."""
STIFFEST = 0.97
"""Likeness of neighbours that is reckoned with at most."""
FEWEST = 20
"""Rows of a column whose turns are looked for."""
CLOSE, ERRORS = 0.1, 3.5
"""Share of the whole way, and standard errors, by which a level may be off in any tenth of the rows
that it holds for."""
NEAR = 0.25
"""The same as a share of the level itself, where it is the smaller."""
DRIFTS, CERTAIN = 0.15, 2.0
"""Share of the whole way that a level must certainly not drift, and standard errors of its
slope that are none."""
LASTS = 0.2
"""Share of the rows that a level holds for, at least."""
HARDLY, WAITS, SOON = 0.15, 0.35, 0.5
"""Share of its way that a column has hardly gone, or that is hardly left; and the shares of a run
before which it has not begun, and after which it is there, where that is told."""
SURELY = 2.5
"""Standard errors of the slope of the last third, where it is told how it goes on."""
JUMPS, BESIDE = 5.0, 5
"""How many times the usual step a jump is, and rows on either side of it that are compared."""
SHOWS = 10.0
"""Standard errors of a level that a column goes, at least, where it is told when."""
FACTOR = 4.0
"""How many times as large levels are, where a column is looked at by factors."""
PLACES = 40
"""Places at which a level may begin."""
MOST = 1000
"""Rows that are looked at; of a longer column the means of so many stretches, as the work grows
with the square of them."""
WIDEST = 3.0
"""How many times the usual step from row to row a step counts, at most."""
USUAL = 0.68
"""Share of steps of normal noise within one standard deviation."""
TINY = 1e-12


class Point(NamedTuple):
    """A level, and the step in the middle of the rows that have it."""

    step: float
    value: float


class Course:
    """Of the rows of a column, none of which is NaN."""

    def __init__(self, values: np.ndarray, step: np.ndarray, close: float = 0.0) -> None:
        self.values, self.step = values, step
        self.close = close
        """How alike the rows of its log are to the next at least."""
        self.rows = _rows_of_a_level(len(values))
        self._values, self._step = _means(values, step)
        self._rows = _rows_of_a_level(len(self._values))

    @cached_property
    def levels(self) -> np.ndarray:
        """The level of every so many rows one after the other."""
        return self._levels(self._values)

    def _levels(self, values: np.ndarray) -> np.ndarray:
        around = np.sort(np.lib.stride_tricks.sliding_window_view(values, self._rows), axis=1)
        cut = self._rows // TRIMMED
        return np.asarray(around[:, cut : self._rows - cut].mean(axis=1))

    @property
    def first(self) -> float:
        return float(self.levels[0])

    @property
    def last(self) -> float:
        return float(self.levels[-1])

    @cached_property
    def way(self) -> float:
        """How far its levels are apart."""
        return float(np.ptp(self.levels))

    @cached_property
    def turns(self) -> list[Point]:
        """Where it turns round, between its first level and its last, of a column that certainly
        moves."""
        return self._turns(SURE)

    @cached_property
    def certainly_turns(self) -> bool:
        """Whether it does so, though nothing else shows that it moves."""
        return bool(self._turns(SURER))

    @cached_property
    def _scaled(self) -> tuple[np.ndarray, np.ndarray]:
        """Its rows and levels; as logarithms, whose noise is of one size, where it goes far."""
        if self._values.min() > 0 and self.levels.max() > FACTOR * self.levels.min():
            values = np.log(self._values)
            return values, self._levels(values)
        return self._values, self.levels

    @cached_property
    def seems_to_turn(self) -> bool:
        """Whether it does so, as noise of many columns hardly does."""
        return bool(self._turns(SEEMS))

    @cached_property
    def differs(self) -> bool:
        """Whether it seems to end elsewhere than it begins."""
        return self._ends_apart > SEEMS

    @cached_property
    def certainly_differs(self) -> bool:
        """Whether it does so, though nothing else shows that it moves."""
        return self._ends_apart > SURER

    @cached_property
    def _ends_apart(self) -> float:
        """How far its last level is from its first, in standard errors of that."""
        values, levels = self._scaled
        error = math.sqrt(2) * Noise(values, self.close).of_mean(self._rows)
        return abs(float(levels[-1] - levels[0])) / max(error, TINY)

    def _turns(self, sure: float) -> list[Point]:
        if len(self._values) < FEWEST:
            return []
        values, levels = self._scaled
        error = Noise(values, self.close).of_mean(self._rows)
        least = max(TURN * float(np.ptp(levels)), sure * math.sqrt(2) * error, TINY)
        return [self._point(at) for at in _turns(levels, least)]

    def _point(self, at: int) -> Point:
        return Point(float(self._step[at + self._rows // 2]), float(self.levels[at]))

    @cached_property
    def jumps(self) -> dict[int, tuple[float, float]]:
        """Rows at which it goes to another level at once: one step from row to row, far larger than
        others, makes most of what parts the rows before from those after. With both levels."""
        if len(self.values) < FEWEST:
            return {}
        apart = np.diff(self.values)
        usual = float(np.quantile(np.abs(apart), USUAL))
        large = np.flatnonzero(np.abs(apart) > max(JUMPS * usual, TINY)) + 1
        large = large[(large >= BESIDE) & (large <= len(self.values) - BESIDE)]
        beside = np.lib.stride_tricks.sliding_window_view(self.values, BESIDE)
        before, after = beside[large - BESIDE], beside[large]
        gaps = before.min(axis=1) - after.max(axis=1), after.min(axis=1) - before.max(axis=1)
        levels = np.median(before, axis=1), np.median(after, axis=1)
        most = np.abs(apart[large - 1]) >= np.abs(levels[1] - levels[0]) / 2
        return {
            int(large[row]): (float(levels[0][row]), float(levels[1][row]))
            for row in np.flatnonzero(most & (np.maximum(*gaps) > 0))
        }

    @cached_property
    def since(self) -> Point | None:
        """The step since which it stands, and its level there; None where that cannot be said of
        all rows that follow."""
        leg = abs(self.last - (self.turns[-1].value if self.turns else self.first))
        at = self._stands(self._values, self.levels, leg)
        if at is None:
            return None
        return Point(float(self._step[at]), float(self._values[at:].mean()))

    @cached_property
    def until(self) -> Point | None:
        """The last step of the level that it begins with."""
        leg = abs(self.first - (self.turns[0].value if self.turns else self.last))
        at = self._stands(self._values[::-1], self.levels[::-1], leg)
        if at is None:
            return None
        return Point(float(self._step[::-1][at]), float(self._values[::-1][at:].mean()))

    @cached_property
    def most(self) -> tuple[Point | None, Point | None]:
        """Of a column that goes one way: the step from which on it goes nearly all of it, where it
        waits, and the step up to which it does, where it is soon there."""
        gone = (self.levels - self.first) / (self.last - self.first or math.inf)
        error = Noise(self._values, self.close).of_mean(self._rows)
        if len(self._values) < FEWEST or self.way < SHOWS * error or np.ptp(gone) > 1 + HARDLY:
            return None, None
        late = self._point(int(np.flatnonzero(gone <= HARDLY)[-1]) if (gone <= HARDLY).any() else 0)
        there = np.flatnonzero(gone >= 1 - HARDLY)
        early = self._point(int(there[0]) if len(there) else len(gone) - 1)
        begin, whole = float(self._step[0]), float(np.ptp(self._step))
        waits = late.step - begin >= WAITS * whole and not self.turns
        soon = early.step - begin <= SOON * whole and not self.turns
        return (late if waits else None), (early if soon else None)

    @cached_property
    def pace(self) -> int:
        """Of a column that goes one way: 1 where its last third certainly goes on at least as fast
        as the whole, -1 where it certainly goes less than half as fast; else 0."""
        third = len(self._values) // 3
        if self.turns or third < FEWEST:
            return 0
        way = float(np.sign(self.last - self.first))
        whole = way * (self.last - self.first) / (len(self._values) - self._rows)
        late = self._values[-third:]
        noise = Noise(late, self.close)
        steep, off = slope(late)
        steep, off = way * steep, SURELY * off * noise.longer
        if steep - off > whole:
            return 1
        return -1 if steep + off < whole / 2 else 0

    def level_from(self, step: float) -> float | None:
        """This step, or the first one after it and in the first half, since which it is about one
        level."""
        half = float(self._step[len(self._step) // 2])
        later = self._step[(self._step > step) & (self._step <= half)].tolist()
        return next((at for at in (step, *later) if self._level_holds(at)), None)

    def level_at(self, step: float) -> float:
        """Its level around a step."""
        place = int(np.searchsorted(self._step, step)) - self._rows // 2
        return float(self.levels[min(max(place, 0), len(self.levels) - 1)])

    def _level_holds(self, step: float) -> bool:
        """Whether all rows since a step are about one level, as far as can be seen: the first and
        the last ones are, none in between are far off, and no drift or bend is certain."""
        begin = int(np.searchsorted(self._step, step))
        values, levels = self._values[begin:], self.levels[begin:]
        if len(values) < FEWEST:
            return True
        noise, level = Noise(values, self.close), float(values.mean())
        off, begins = np.abs(levels - level), max(self._rows // 2, 1)
        error, small = noise.of_mean(self._rows), TURN * CLOSE * self.way
        return (
            # A level that is told from a later step on is as true: less is allowed where it begins.
            abs(float(values[:begins].mean()) - level) <= max(noise.of_mean(begins), small)
            and float(off[-1]) <= max(CERTAIN * error, small)
            and float(off.max()) <= max(ERRORS * error, small)
            and all(far <= CERTAIN * unsure for far, unsure in _drifts(values, noise))
        )

    def _stands(self, values: np.ndarray, levels: np.ndarray, way: float) -> int | None:
        rows, last = len(values), len(values) - max(2 * self._rows, int(LASTS * len(values)))
        for at in range(self._rows, last + 1, max(rows // PLACES, 1)) if rows >= FEWEST else ():
            if self.holds(values[at:], levels[at:], way):
                return at
        return None

    def holds(self, values: np.ndarray, levels: np.ndarray, way: float) -> bool:
        """Whether these rows stand: none of their levels is off, and no drift that would matter
        beside the way to them is left open."""
        level, noise = float(values.mean()), Noise(values, self.close)
        allowed = min(CLOSE * way, NEAR * abs(level) if values.min() >= 0 else math.inf)
        error = noise.of_mean(self._rows)
        if values.min() >= 0 and ERRORS * error > NEAR * level:
            return False  # it may be another level throughout
        return (
            float(np.abs(levels - level).max()) <= max(allowed, ERRORS * error)
            and abs(float(levels[-1]) - level) <= max(allowed, CERTAIN * error)
            and all(
                far <= max(CERTAIN * off, TINY * abs(level)) and far + CERTAIN * off <= DRIFTS * way
                for far, off in _drifts(values, noise)
            )
        )


def _rows_of_a_level(rows: int) -> int:
    return min(max(rows // SHARE, LEAST), max(rows // 3, 1))


def _means(values: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of as many stretches as are looked at, each with the step that it begins with."""
    rows = len(values)
    if rows <= MOST:
        return values, step
    begins = np.arange(MOST) * rows // MOST
    sizes = np.diff([*begins, rows])
    return np.add.reduceat(values, begins) / sizes, step[begins]


def _drifts(values: np.ndarray, noise: "Noise") -> Iterator[tuple[float, float]]:
    """How far a straight line through the rows goes, and a bend, each with its standard error."""
    time = np.linspace(-1, 1, len(values))
    shapes = np.stack([np.ones_like(time), time, 1.5 * time**2 - 0.5], axis=1)
    weights, *_ = np.linalg.lstsq(shapes, values, rcond=None)
    rest = values - shapes @ weights
    off = math.sqrt(float(rest @ rest) / (len(values) - 3)) * noise.longer
    for at in (1, 2):
        far = float(np.ptp(shapes[:, at]))
        yield abs(float(weights[at])) * far, off * far / float(np.linalg.norm(shapes[:, at]))


class Noise:
    """What the steps from row to row say of how far off rows are, which hardly know a course; by
    rounding at least."""

    def __init__(self, values: np.ndarray, close: float = 0.0) -> None:
        rows = len(values)
        perhaps = alike(values) + 1 / math.sqrt(rows) if rows >= FEWEST else STIFFEST
        self.close = min(max(perhaps, close), STIFFEST)
        apart = np.abs(np.diff(values))
        usual = float(np.quantile(apart, USUAL)) or math.inf
        size = float(np.mean(np.minimum(apart, WIDEST * usual) ** 2))
        self.off = max(math.sqrt(size / 2 / (1 - self.close)), rounding_of(values))

    @property
    def longer(self) -> float:
        """How many times as large an error is where neighbours are alike."""
        return math.sqrt((1 + self.close) / (1 - self.close))

    def of_mean(self, rows: int) -> float:
        """Standard error of a mean of so many rows."""
        close = self.close
        less = 2 * close * (1 - close**rows) / (rows * (1 - close) ** 2)
        return self.off * math.sqrt(max(self.longer**2 - less, 0.0) / rows)


def _turns(levels: np.ndarray, least: float) -> list[int]:
    """Places at which levels turn by so much at least, one after the other."""
    found: list[int] = []
    low = high = 0
    way = 0
    for at, level in enumerate(levels):
        low, high = (low if levels[low] <= level else at), (high if levels[high] >= level else at)
        if way <= 0 and level > levels[low] + least:
            found += [low] if way else []
            way, high = 1, at
        elif way >= 0 and level < levels[high] - least:
            found += [high] if way else []
            way, low = -1, at
    return found
