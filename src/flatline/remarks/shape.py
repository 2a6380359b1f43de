"""How a column of numbers goes: at which rows its level certainly changes, and what stands out.

A column is read by the ranks of its raw rows, which no outlier moves far. Three questions are asked
of it: do its thirds differ, is there a row before and after which it differs, and is there a
stretch that differs from what is around it. The more splits a question tries, the further apart
the levels must be: over all columns of a log together, noise is to be called a change in one log of
`1 / ALPHA`. Neighbours that are alike say less, and how alike they are is seen beside the change
that is asked about. `python benchmarks/remarks.py` counts what is said of noise.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, takewhile
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.course import alike as steps_alike
from flatline.hypotheses.levels import Course
from flatline.stats import is_constant, rounding_of, t_score

ALPHA = 0.06
"""Logs of noise, as a share, of which a change may be reported."""
QUESTIONS = 3
HARDLY = 0.99
"""How sure a change of one column must be, to be told as a guess."""
FEWEST, SHORTEST = 10, 4
"""Rows of a column whose changes are looked for, and of a stretch between two of them."""
MANY = 400
"""Rows above which only one change at a time is looked for: a stretch needs the square of them."""
UNSURE = 2.0
"""How much further apart levels must be where neighbours are alike: how alike is hardly known."""
SMALLER = 2.0
"""By how much each mean that is taken away makes neighbours look less alike, in 1 / rows."""
STIFFEST = 0.97
"""Likeness of neighbours that is reckoned with at most."""
DRIFT, MEDIAN_OF_STEPS = 10.0, 0.6745
"""Standard deviations of a step from row to row that thirds of noise are never apart, though each
row is as alike to the one before as 0.95; and the median step of normal noise in these."""
WORTH = 10
"""Independent rows that all must be worth, to show anything."""
JOINED = 3.5
"""Standard errors that two neighbouring stretches differ by, else they are one."""
FEWEST_DISTINCT = 5
"""Values before a column became one number, or that a column has which is no setting."""
SEVERAL = 4
"""Columns that show what they have in common."""
LAST, LASTING = 6, 0.1
"""Rows at the end that are one number, at least, and as a share of all."""
NEARLY_ALL = 0.8
"""Share of the rows that are one number, of a column whose other rows are told one by one."""
FAR, TIMES, IQR = 8.0, 5.0, 1.35
"""Standard deviations, and how often the level around it, of a row that stands out; quartiles of
normal noise are `IQR` of them apart."""
MOST = 0.7
"""Share of a change that the rows beside it show, where it is abrupt."""
SLOPE = 0.4
"""Share of a change that half a stretch beside it may make by itself, where it is abrupt."""
LEVELS = 4
"""Levels of a column that is constant but for jumps, at most."""
TINY, MOST_LOG = 1e-12, 700.0


class Noise(NamedTuple):
    """What the columns of a log have in common."""

    looks: int
    """How many are looked at."""
    alike: float = 0.0
    """How alike a row is to the next, at least. A single column hardly shows it."""


def likeness(columns: list[np.ndarray]) -> float:
    """The median of what all columns show, without counters and what stands."""
    alike = []
    for values in columns:
        values = values[np.isfinite(values)]
        counts = np.ptp(np.sign(np.diff(values))) == 0 if len(values) > 1 else True
        if len(values) >= FEWEST and not counts:
            alike.append(steps_alike(_scores(values)))
    return float(np.median(alike)) if len(alike) >= SEVERAL else 0.0


class Shape:
    """A column in the rows that have it."""

    def __init__(self, values: np.ndarray, step: np.ndarray, noise: "Noise") -> None:
        known = np.isfinite(values)
        self.values, self.step = _unless_rounding(values[known]), step[known]
        self.noise = noise

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def constant(self) -> bool:
        return bool(len(self) and np.ptp(self.values) == 0)

    @cached_property
    def scores(self) -> np.ndarray:
        """What normal noise of the same ranks would be."""
        return _scores(self.values)

    @cached_property
    def levels(self) -> list[int]:
        """Where each level begins, of a column that is constant but for a few jumps."""
        apart = np.abs(np.diff(self.values)) > rounding_of(self.values)
        begins = [0, *(np.flatnonzero(apart) + 1)]
        shortest = int(np.diff([*begins, len(self)]).min()) if len(begins) <= LEVELS else 0
        lasts = 2 <= len(begins) <= LEVELS and shortest >= min(LAST, len(self) // 4 + 1)
        exact = lasts and all(map(is_constant, np.split(self.values, begins[1:])))
        return [int(at) for at in begins] if exact else []

    @cached_property
    def counts_up(self) -> bool:
        """Whether every row is above the one before, as in a counter."""
        return len(self) > 1 and bool((np.diff(self.values) > 0).all())

    @cached_property
    def cuts(self) -> list[int]:
        """Rows at which a new level certainly begins, the first one included."""
        if len(self) < FEWEST or self.constant or (self.rare and not self.levels):
            return [0]
        if self.levels:
            return self.levels
        scores = self.scores
        found = _joined(scores, sorted({0, *_cuts(scores, 0, self.noise, len(scores))}))
        return found if len(found) > 1 else [0, *_far_runs(self.values)]

    @cached_property
    def pieces(self) -> list[np.ndarray]:
        """The values between the cuts."""
        return [self.values[a:b] for a, b in pairwise([*self.cuts, len(self)])]

    @cached_property
    def trend(self) -> int:
        """1 where the last third is certainly above the first, -1 where below, else 0."""
        needed = _needed(len(self), 1, 0.0, self.noise)
        certain = abs(self._thirds_apart) > needed or (self._thirds_apart and _drifts(self.values))
        return int(np.sign(self._thirds_apart)) if certain else 0

    @cached_property
    def leans(self) -> bool:
        """Whether the thirds differ as one column alone hardly does by chance; many columns do."""
        return abs(self._thirds_apart) > t_score(max(len(self) - 2, 2), HARDLY)

    @cached_property
    def _thirds_apart(self) -> float:
        """How far, in standard errors; less where neighbours are alike."""
        if len(self) < FEWEST or self.constant or self.rare:
            return 0.0
        scores, third = self.scores, len(self) // 3
        line = _line(scores)
        close = max(_beside_a_change(scores), self.noise.alike)
        error = math.sqrt(max(_variance(line, 2) * 2 * _of_mean(third, close), TINY))
        apart = float(scores[-third:].mean() - scores[:third].mean())
        return apart / error / (1 + UNSURE * close**2)

    @cached_property
    def since(self) -> int:
        """Rows at the end that are one number, of a column that had several before."""
        same = self.values[::-1] == self.values[-1]
        rows = int(np.argmin(same)) if not same.all() else len(self)
        before = self.values[: len(self) - rows]
        several = len(np.unique(before)) >= FEWEST_DISTINCT and 2 * _longest_run(before) < rows
        return rows if several and rows >= max(LAST, LASTING * len(self)) else 0

    @cached_property
    def outliers(self) -> np.ndarray:
        """Rows of a column above 0 that are many times as large as those around them."""
        if len(self) < 2 * FEWEST or self.values.min() < 0 or self.rare:
            return np.zeros(0, int)
        far = np.concatenate([_far(piece, self.values) for piece in self.pieces])
        # A level may begin some rows before its cut, and end some rows after it.
        for which, at in enumerate(self.cuts[1:], 1):
            before, after = self.pieces[which - 1 : which + 1]
            for rows, most in ((range(at - 1, -1, -1), after), (range(at, len(self)), before)):
                for row in takewhile(lambda row: far[row], rows):
                    far[row] = self.values[row] > most.max()
        return np.flatnonzero(far)

    @cached_property
    def rare(self) -> bool:
        """Whether nearly all rows are one number."""
        _, count = np.unique(self.values, return_counts=True)
        return bool(count.max() >= NEARLY_ALL * len(self))

    @cached_property
    def course(self) -> Course:
        """Of the rows that do not stand out, which are told for themselves."""
        usual = np.delete(np.arange(len(self)), self.outliers)
        return Course(self.values[usual], self.step[usual], self.noise.alike)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The levels that it begins and ends with; those of its two stretches where it jumps."""
        if len(self.cuts) == 2 and self.sharp(1) and self.stands(0) and self.stands(1):
            return typical(self.pieces[0]), typical(self.pieces[1])
        return self.course.first, self.course.last

    def stands(self, which: int) -> bool:
        """Whether a stretch is where the column begins or ends, beside how far it jumps to it."""
        first, last = typical(self.pieces[0]), typical(self.pieces[-1])
        end = (self.course.first, self.course.last)[which > 0]
        return abs(typical(self.pieces[which]) - end) <= (1 - MOST) * abs(last - first)

    @cached_property
    def moves(self) -> bool:
        """Whether anything about its level is certain to change."""
        if len(self.cuts) > 1 or self.trend != 0:
            return True
        # However alike its neighbours are.
        return not self.rare and (self.course.certainly_turns or self.course.certainly_differs)

    def differs(self, borders: list[float]) -> bool:
        """Whether the level certainly differs from these steps on, or between them."""
        if len(self) < FEWEST or self.constant or self.rare:
            return False
        cuts = np.searchsorted(self.step, borders).tolist()
        scores = self.scores
        long = min(np.diff([0, *cuts, len(self)])) >= SHORTEST
        return long and _beyond(scores, cuts, 1, self.noise, len(self)) > 1

    def sharp(self, which: int) -> bool:
        """Whether it changes from one row to the next at this cut: the rows on both sides of it do
        not overlap, and are as far apart as the stretches are."""
        before, after = self.beside(which)
        apart = max(before.min() - after.max(), after.min() - before.max())
        return self.near(which, SHORTEST) and bool(apart > 0)

    def near(self, which: int, rows: int) -> bool:
        """Whether so many rows before and after this cut show most of the change, which no slope
        inside the stretches does; as numbers or, where all are above 0, as factors."""
        scales = (np.asarray, np.log) if self.values.min() > 0 else (np.asarray,)
        shown, slopes = [], []
        for scale in scales:
            before, after = (np.median(scale(part)) for part in self._around(which, rows))
            sides = [scale(part) for part in self.pieces[which - 1 : which + 1]]
            whole = max(abs(float(np.median(sides[1]) - np.median(sides[0]))), TINY)
            shown.append(abs(float(after - before)) / whole)
            slopes.append([_slope(side) / whole for side in sides])
        return max(shown) >= MOST and max(np.min(slopes, axis=0)) <= SLOPE

    def beside(self, which: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows before and after this cut."""
        return self._around(which, SHORTEST)

    def _around(self, which: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return self.pieces[which - 1][-rows:], self.pieces[which][:rows]


def _slope(values: np.ndarray) -> float:
    half = len(values) // 2
    return abs(float(np.median(values[half:]) - np.median(values[:half])))


def _longest_run(values: np.ndarray) -> int:
    """Rows one after the other that are one number."""
    changes = np.flatnonzero(np.diff(values)) + 1
    return int(np.diff([0, *changes, len(values)]).max())


def _unless_rounding(values: np.ndarray) -> np.ndarray:
    """One number throughout, where no more than rounding differs."""
    return np.full(len(values), np.median(values)) if is_constant(values) else values


def typical(values: np.ndarray) -> float:
    """The mean; the median where a few rows make the mean, or where all are one number, of which
    the mean is off by rounding."""
    ordered, mean = np.sort(values), float(values.mean())
    low, middle, high = (_quantile(ordered, share) for share in (0.25, 0.5, 0.75))
    if is_constant(ordered):
        return middle
    return middle if low < high and abs(mean - middle) > high - low else mean


def _quantile(ordered: np.ndarray, share: float) -> float:
    """As numpy's, which takes many times as long for the few rows of most stretches."""
    place = share * (len(ordered) - 1)
    at = int(place)
    before, after = float(ordered[at]), float(ordered[min(at + 1, len(ordered) - 1)])
    return before + (after - before) * (place - at)


def _drifts(values: np.ndarray) -> bool:
    """Whether its thirds are further apart than any noise comes by steps like these, as they are or
    as factors: a column that goes its way so steadily looks smooth, and ranks cannot tell."""
    third = len(values) // 3
    for each in (values, np.log(values) if values.min() > 0 else values):
        usual = float(np.median(np.abs(np.diff(each)))) / MEDIAN_OF_STEPS
        apart = abs(float(np.median(each[-third:]) - np.median(each[:third])))
        if apart > DRIFT * usual > 0:
            return True
    return False


def _scores(values: np.ndarray) -> np.ndarray:
    """What normal noise of the same ranks would be."""
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    share = (np.cumsum(count) - count / 2) / len(values)
    return np.array(list(map(NormalDist().inv_cdf, share.tolist())))[which]


def _cuts(scores: np.ndarray, start: int, noise: Noise, rows: int) -> list[int]:
    """Where levels begin in these rows, of `rows` in all, the first left out."""
    if len(scores) < 2 * SHORTEST:
        return []
    one, stretch = [_best_cut(scores)], _best_stretch(scores)
    found = max(
        (_beyond(scores, one, rows, noise, rows), one),
        (_beyond(scores, stretch, rows**2 // 4, noise, rows), stretch),
    )
    if found[0] <= 1:
        return []
    borders = [0, *found[1], len(scores)]
    inside = [_cuts(scores[a:b], start + a, noise, rows) for a, b in pairwise(borders)]
    return [*(start + at for at in found[1]), *(at for each in inside for at in each)]


def _best_cut(scores: np.ndarray) -> int:
    n = len(scores)
    at = np.arange(SHORTEST, n - SHORTEST + 1)
    before = np.cumsum(scores)[at - 1]
    apart = np.abs(before / at - (scores.sum() - before) / (n - at))
    return int(at[(apart / np.sqrt(1 / at + 1 / (n - at))).argmax()])


def _best_stretch(scores: np.ndarray) -> list[int]:
    """Begin and end of the rows that differ most from all others; neither end of the column."""
    n = len(scores)
    if n < 3 * SHORTEST or n > MANY:
        return []
    total = np.concatenate([[0.0], np.cumsum(scores)])
    begin, end = np.triu_indices(n - 2 * SHORTEST + 1, SHORTEST)
    begin, end = begin + SHORTEST, end + SHORTEST
    inside, rows = total[end] - total[begin], end - begin
    apart = np.abs(inside / rows - (total[-1] - inside) / (n - rows))
    best = int((apart / np.sqrt(1 / rows + 1 / (n - rows))).argmax())
    return [int(begin[best]), int(end[best])]


def _beyond(scores: np.ndarray, cuts: list[int], tries: int, noise: Noise, rows: int) -> float:
    """How far levels are apart, as a share of what is needed."""
    if not cuts:
        return 0.0
    borders = [0, *cuts, len(scores)]
    rest = _beside(scores, borders[:-1])
    close = max(_alike(rest, len(borders) - 1), noise.alike)
    inside = np.zeros(len(scores), bool)
    inside[cuts[0] : cuts[1] if cuts[1:] else len(scores)] = True
    spread = _of_mean(int(inside.sum()), close) + _of_mean(int((~inside).sum()), close)
    error = math.sqrt(max(_variance(rest, len(borders) - 1) * spread, TINY))
    apart = abs(float(scores[inside].mean() - scores[~inside].mean()))
    return apart / error / _needed(rows, tries, close, noise)


def _line(scores: np.ndarray) -> np.ndarray:
    """Scores less a straight line."""
    time = np.arange(len(scores))
    return np.asarray(scores - np.polyval(np.polyfit(time, scores, 1), time))


def _beside_a_change(scores: np.ndarray) -> float:
    """How alike neighbours are beside a straight line, or beside two levels where less so."""
    return min(_alike(_line(scores), 2), _alike(_beside(scores, [0, _best_cut(scores)]), 2))


def _beside(scores: np.ndarray, begins: Sequence[int]) -> np.ndarray:
    """Scores less the mean of their stretch."""
    parts = [scores[a:b] - scores[a:b].mean() for a, b in pairwise([*begins, len(scores)])]
    return np.concatenate(parts)


def _alike(rest: np.ndarray, means: int) -> float:
    """Correlation of a row with the next, beside so many means, which make it look smaller."""
    size = float(rest @ rest)
    if size <= TINY * len(rest):
        return 0.0
    close = float(rest[:-1] @ rest[1:]) / size
    close += SMALLER * means * (1 + 2 * max(close, 0.0)) / len(rest)
    return min(max(close, 0.0), STIFFEST)


def _variance(rest: np.ndarray, means: int) -> float:
    return float(rest @ rest) / (len(rest) - means)


def _of_mean(rows: int, close: float) -> float:
    """Variance of a mean of so many rows, as a share of that of one."""
    less = 2 * close * (1 - close**rows) / (rows * (1 - close) ** 2)
    return ((1 + close) / (1 - close) - less) / rows


def _needed(rows: int, tries: int, close: float, noise: Noise) -> float:
    """Standard errors beyond which no split of noise goes."""
    if rows * (1 - noise.alike) / (1 + noise.alike) < WORTH:
        return math.inf
    chance = ALPHA / QUESTIONS / max(noise.looks, 1) / tries
    return t_score(max(rows - 2, 2), 1 - chance) * (1 + UNSURE * close**2)


def _joined(scores: np.ndarray, cuts: list[int]) -> list[int]:
    """Without the cuts whose sides are alike once all are known."""
    while len(cuts) > 1:
        parts = [scores[a:b] for a, b in pairwise([*cuts, len(scores)])]
        rest = _beside(scores, cuts)
        noise = max(_variance(rest, len(cuts)), TINY)
        close = _alike(rest, len(cuts))
        apart = [
            abs(float(b.mean() - a.mean()))
            / math.sqrt(noise * (_of_mean(len(a), close) + _of_mean(len(b), close)))
            for a, b in pairwise(parts)
        ]
        least = int(np.argmin(apart))
        if apart[least] >= JOINED:
            break
        cuts = [*cuts[: least + 1], *cuts[least + 2 :]]
    return cuts


def _far_runs(values: np.ndarray) -> list[int]:
    """Where rows begin and end that are all far off on one side, one after the other: ranks hardly
    tell how far."""
    scaled = np.log(values) if values.min() > 0 else values
    low, middle, high = np.quantile(scaled, (0.25, 0.5, 0.75))
    off = FAR * float(high - low) / IQR if high > low else math.inf
    borders: list[int] = []
    for far in (scaled > middle + off, scaled < middle - off):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], far.astype(int), [0]])))
        runs = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        borders += [at for run in runs if run[1] - run[0] >= SHORTEST for at in run]
    return sorted(at for at in borders if SHORTEST <= at <= len(values) - SHORTEST)


def _far(piece: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which rows of a stretch are many times its level."""
    around = piece if len(piece) >= 2 * SHORTEST else values
    around = np.log(around[around > 0])
    if len(around) < SHORTEST:
        return np.zeros(len(piece), bool)
    low, middle, high = np.quantile(around, (0.25, 0.5, 0.75))
    least = middle + max(FAR * (high - low) / IQR, math.log(TIMES))
    return np.asarray(piece > math.exp(min(least, MOST_LOG)))
