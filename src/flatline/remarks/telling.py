"""What one column does, in clauses: `rises from 0.2 to 0.5 and stays there since about step 40`."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.column_movement import stands
from flatline.hypotheses.levels import Point
from flatline.remarks.columns import OTHER, Column, listed, sentence, short
from flatline.remarks.shape import FEWEST, SHORTEST, Shape, typical

SOME_ZEROS = 0.1
"""Share of rows that are 0, told where each of them means something."""
POINTS = 0.02
"""Change of a share, of 1, that is told."""
BACK = 0.5
"""Share of a dip that is left where it came back."""
PEAK, FEW = (4.0, 1.5), 2
"""How far above its level the largest value is that is told with it, where it falls and where it
rises; and rows that are told one by one."""
STILL, WITHIN = 0.1, 0.25
"""Relative change that is none, and how far a row of a column that stays is from its mean."""
PARTS_OF_RUN, ENOUGH = 5, 20
"""Parts of a run that must be alike, and rows of it, to say that nothing changes."""
DIFFER = 4.5
"""How many times the variance of their rows the parts of a run vary, which hardly one in
five hundred columns of noise do."""
NEAR = 8
"""Part of the rows on either side of a change that shows when it was."""
SOON = 0.1
"""Share of the steps within which a column that waited goes most of its way."""
LISTED = 5
"""Levels that are told one after the other."""


class Clause(NamedTuple):
    """Something that a column does."""

    column: Column
    text: str
    """What follows its name."""
    at: float | None = None
    """The step at which it does so, from one row to the next."""
    around: tuple[float, ...] = ()
    """About when it changes, where that takes a few rows."""

    def __str__(self) -> str:
        return f"{self.column.subject} {self.text}"


def clauses_of(column: Column) -> list[Clause]:
    """What it certainly does."""
    shape = column.shape
    if shape.constant or len(shape) < 2 or (shape.counts_up and column.words.rank >= OTHER):
        return []
    moved = [] if _ends_at_once(shape) else list(_movement(column))
    return [*moved, *_single_rows(column, bool(moved))]


def _ends_at_once(shape: Shape) -> bool:
    """Whether the only change is that it becomes one number."""
    return len(shape.cuts) == 2 and abs(len(shape) - shape.since - shape.cuts[1]) < SHORTEST


def _movement(column: Column) -> Iterator[Clause]:
    shape = column.shape
    if shape.levels:
        jumps = [
            f"to {column.number(shape.values[at])} at step {shape.step[at]:g}"
            for at in shape.levels
        ]
        text = f"jumps from {column.bare(shape.values[0])} {', then '.join(jumps[1:])}"
        yield Clause(column, text, float(shape.step[shape.levels[1]]))
        return
    levels = [typical(piece) for piece in shape.pieces]
    turns = [turn.value for turn in shape.course.turns]
    first, last = shape.ends
    if not shape.moves or not _matters(column, [first, *levels, *turns, last]):
        return
    cuts = [which for which in range(1, len(levels)) if shape.near(which, len(shape) // NEAR)]
    sharp = [float(shape.step[shape.cuts[which]]) for which in cuts if shape.sharp(which)]
    around = tuple(float(shape.step[shape.cuts[which]]) for which in cuts)
    text = _passes(column, levels, cuts) or _by_turns(column) or _one_way(column)
    top = int(shape.values.argmax())
    if (
        not len(shape.outliers)
        and shape.values[top] > PEAK[last > first] * max(first, last, *levels, *turns) > 0
    ):
        text += f", {column.bare(shape.values[top])} at most (step {shape.step[top]:g})"
    yield Clause(column, text, sharp[0] if sharp else None, around)


def _matters(column: Column, levels: list[float]) -> bool:
    low, high = min(levels), max(levels)
    enough = high - low >= column.words.least * max(abs(low), abs(high))
    return enough and (not column.words.share or high - low >= POINTS)


def _passes(column: Column, levels: list[float], cuts: list[int]) -> str:
    """A stretch that differs from what is around it, where it begins and ends within few rows."""
    if len(levels) != 3 or (cuts != [1, 2] and column.shape.course.turns):
        return ""
    shape, (before, between, after) = column.shape, levels
    if abs(after - before) > BACK * abs(between - before):
        return ""
    begin, end = shape.step[shape.cuts[1]], shape.step[shape.cuts[2] - 1]
    way = "up" if between > before else "down"
    around = f"({column.bare(before)} before, {column.bare(after)} after)"
    return f"goes {way} to {column.number(between)} in steps {begin:g} to {end:g} {around}"


def _by_turns(column: Column) -> str:
    """Where it turns, and at what level."""
    course, turns = column.shape.course, column.shape.course.turns
    if not turns:
        return ""
    if len(turns) == 1:
        [turn] = turns
        one, other = ("rises", "falls") if turn.value > course.first else ("falls", "rises")
        return (
            f"{one} from {column.bare(course.first)} to {column.number(turn.value)} around step "
            f"{turn.step:g}, then {other} to {column.number(course.last)}"
            f"{_at_once(column, turn) or _stands(column)}"
        )
    if len(turns) > LISTED:
        low, high = (column.bare(pick(turns, key=lambda at: at.value).value) for pick in (min, max))
        return (
            f"goes up and down between {low} and {high}, from {column.bare(course.first)} at first "
            f"to {column.number(course.last)} at last"
        )
    told = [f"{column.bare(turn.value)} around step {turn.step:g}" for turn in turns]
    first, last = column.bare(course.first), column.number(course.last)
    return f"is {first} at first, {', '.join(told)} and {last} at last"


def _at_once(column: Column, turn: Point) -> str:
    """That it goes most of its way back from one row to the next."""
    shape = column.shape
    for which in range(1, len(shape.cuts)):
        before, after = (typical(part) for part in shape.beside(which))
        most = (after - before) / (shape.course.last - turn.value) >= BACK
        sharp = shape.sharp(which) and shape.near(which, len(shape) // NEAR)
        if shape.step[shape.cuts[which]] > turn.step and sharp and most:
            at = shape.step[shape.cuts[which]]
            return f" (from {column.bare(before)} to {column.bare(after)} at step {at:g})"
    return ""


def _one_way(column: Column) -> str:
    shape = column.shape
    first, last = shape.ends
    cut = [shape.step[at] for at in shape.cuts[1:]] if len(shape.cuts) == 2 else []
    sides = [typical(part) for part in shape.beside(1)] if cut and shape.sharp(1) else []
    if sides and abs(sides[1] - sides[0]) >= BACK * abs(last - first) and not _level(shape):
        before, after = map(column.bare, sides)
        ends = f"{column.bare(first)} at first and {column.number(last)} at last"
        return f"jumps from {before} to {after} at step {cut[0]:g}; it is {ends}"
    word = "rises" if last > first else "falls"
    told = f"{word} from {column.bare(first)} to {column.number(last)}"
    told += f" ({column.words.falls})" if last < first and column.words.falls else ""
    if shape.since:
        return told
    if cut and shape.near(1, len(shape) // NEAR) and _level(shape):
        return f"{told} {'at' if shape.sharp(1) else 'around'} step {cut[0]:g}"
    return f"{told}{_begins(column)}{_stands(column)}"


def _level(shape: Shape) -> bool:
    """Whether both stretches of a column are where it begins and ends."""
    return shape.stands(0) and shape.stands(1)


def _begins(column: Column) -> str:
    """Until when it stands where it begins, and when it goes nearly all of its way."""
    course, whole = column.shape.course, float(np.ptp(column.shape.step))
    late, early = course.most
    until, told = course.until, ""
    if until is not None:
        told = f" (about {column.bare(until.value)} until step {until.step:g})"
    waited = late is not None and (until is None or late.step - until.step > SOON * whole)
    if late is not None and waited:
        told += f", most of it from about step {late.step:g} on{',' * (course.since is not None)}"
    elif early is not None and course.since is None:
        told += f", most of it by about step {early.step:g}"
    elif course.since is None and course.pace:
        told += ", and goes on faster at the end" if course.pace > 0 else ", ever more slowly"
    return told


def _stands(column: Column) -> str:
    """Since when it stands where it ends."""
    since, last = column.shape.course.since, column.shape.course.last
    if since is None:
        return ""
    if column.bare(since.value) == column.bare(last):
        return f" and stays there since about step {since.step:g}"
    return f" (about {column.bare(since.value)} since step {since.step:g})"


def _single_rows(column: Column, moved: bool) -> Iterator[Clause]:
    """What a few rows do, or the last ones."""
    shape, words = column.shape, column.words
    zeros, rows = int((shape.values == 0).sum()), len(shape)
    why = f": {words.zero}" if words.zero else ""
    if shape.since:
        last, since = float(shape.values[-1]), float(shape.step[-shape.since])
        told = f"is {column.number(last)} in all {shape.since} rows since step {since:g}"
        if _ends_at_once(shape):
            told += f" ({column.bare(typical(shape.pieces[0]))} before)"
        more = f", and in {zeros} of all {rows}" if last == 0 and zeros > shape.since else ""
        yield Clause(column, told + more + why * (last == 0), since)
    elif shape.rare and not shape.levels:
        yield Clause(column, _rare(column))
    elif words.zero and zeros >= SOME_ZEROS * rows:
        yield Clause(column, f"is 0 in {zeros} of {rows} rows{why}")
    if words.below and (below := int((shape.values < 0).sum())):
        why = words.below if below > rows / 2 else ""
        yield Clause(column, f"is below 0 in {below} of {rows} rows{why}")
    if len(shape.outliers):
        yield Clause(column, _outlying(column, moved))


def _rare(column: Column) -> str:
    """A column that is one number in nearly all rows."""
    shape = column.shape
    usual = float(np.median(shape.values))
    rows = np.flatnonzero(shape.values != usual)
    most = rows[np.abs(shape.values[rows] - usual).argmax()]
    value, at = column.number(shape.values[most]), f"step {shape.step[most]:g}"
    told = f"is {column.bare(usual)} in {len(shape) - len(rows)} of {len(shape)} rows"
    if len(rows) == 1:
        return f"{told} ({value} at {at})"
    low, high = shape.values[rows].min(), shape.values[rows].max()
    late = f"; never before step {shape.step[rows[0]]:g}" if rows[0] > len(shape) / 2 else ""
    if low < usual < high:
        return f"{told} (farthest from it: {value}, {at}{late})"
    return f"{told} (otherwise {value} {'at most' if low > usual else 'at least'}, {at}{late})"


def _outlying(column: Column, moved: bool) -> str:
    shape = column.shape
    rows = shape.values[shape.outliers]
    at, most = shape.step[shape.outliers[rows.argmax()]], column.number(rows.max())
    otherwise = "" if moved else f", otherwise about {column.bare(float(np.median(shape.values)))}"
    if len(rows) <= FEW:
        others = [place for place in shape.outliers if shape.step[place] != at]
        each = [f"{column.bare(shape.values[on])} at step {shape.step[on]:g}" for on in others]
        also = f" and {listed(each)}" if each else ""
        # Another stretch may be above it altogether.
        highest = "at most " if rows.max() == shape.values.max() else ""
        return f"is {most} {highest}(step {at:g}){also}{otherwise}"
    when = f"in {len(rows)} rows since step {shape.step[shape.outliers[0]]:g}"
    least = column.bare(rows.min())
    told = (
        f"is {most} {when}" if least == column.bare(rows.max()) else f"is {least} to {most} {when}"
    )
    return f"{told} (most at step {at:g}){otherwise}"


def stays(column: Column) -> bool:
    """Whether it is the same all the time: every row is, or every part of the run is."""
    shape = column.shape
    if shape.constant or shape.levels or shape.leans or shape.moves or len(shape) < FEWEST:
        return False
    level = float(shape.values.mean())
    parts = [float(part.mean()) for part in np.array_split(shape.values, PARTS_OF_RUN)]
    apart = min(column.words.least, STILL) * abs(level)
    if max(parts) - min(parts) > apart and _parts_differ(shape.values, parts):
        return False
    if shape.course.seems_to_turn or shape.course.differs:
        return False
    close = np.abs(shape.values - level).max() <= WITHIN * abs(level)
    first, last = _thirds(shape)
    if close and abs(last - first) <= STILL * abs(level):
        return True
    level_parts = max(parts) - min(parts) <= WITHIN * abs(level)
    return len(shape) >= ENOUGH and level_parts and stands(shape.values, shape.step)


def _parts_differ(values: np.ndarray, means: list[float]) -> bool:
    """Whether the parts of a run differ by more than their rows do: who says that nothing changes
    must not be shown to be wrong by them."""
    split = np.array_split(values, PARTS_OF_RUN)
    rows = [len(part) for part in split]
    if min(rows) < 2:
        return False
    inside = sum(float(((part - part.mean()) ** 2).sum()) for part in split)
    around = sum(n * (mean - values.mean()) ** 2 for n, mean in zip(rows, means, strict=True))
    noise = inside / (len(values) - PARTS_OF_RUN)
    return bool(around / (PARTS_OF_RUN - 1) > DIFFER * noise)


def uncertain(column: Column) -> str:
    """First and last third of a column that may have moved; empty where it goes around 0."""
    first, last = _thirds(column.shape)
    around_0 = abs(column.shape.values.mean()) < column.shape.values.std()
    if around_0 and column.shape.values.min() < 0:
        return ""
    course = column.shape.course
    if course.seems_to_turn and _matters(
        column, [course.first, *(at.value for at in course.turns)]
    ):
        return f"{column.subject} {_by_turns(column)}"
    told = f"{column.bare(first)} to {column.number(last)}"
    if course.differs and _matters(column, [course.first, course.last]):
        ends = f"{column.bare(course.first)} to {column.number(course.last)}"
        return f"{column.subject} {'rises' if course.last > course.first else 'falls'} from {ends}"
    if not column.shape.leans or not _matters(column, [first, last]):
        return f"{column.subject} {told}"
    return f"{column.subject} {'rises' if last > first else 'falls'} from {told}"


def _thirds(shape: Shape) -> tuple[float, float]:
    third = max(len(shape) // 3, 1)
    return typical(shape.values[:third]), typical(shape.values[-third:])


def reward_in_words(reward: Column, goes: list[Clause]) -> str:
    """Where it begins and ends, how noisy one row is, and how it goes where that says more."""
    values, third = reward.shape.values, len(reward.shape) // 3
    first, last = (short(float(each.mean())) for each in (values[:third], values[-third:]))
    noise = short(float(np.diff(values).std()) / 2**0.5)
    told = f"the reward is {first} in the first third and {last} in the last"
    course = reward.shape.course
    ends = (short(course.first), short(course.last))
    if goes and course.rows < third and ends != (first, last):
        rows = f"{course.rows} rows"
        told += f" ({ends[0]} in the first {rows}, {ends[1]} in the last {rows})"
    more = [f"it {one.text}" for one in goes if re.search("step|slowly|faster", one.text)]
    return sentence([told, f"one row is off by about {noise}", *more])
