"""The parts of a reward, as a log has them: what pays nothing, what pays twice, what made the gain.

Which columns make up the reward, and with which weights, is read off the numbers: it is told where
they add up exactly.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.column_movement import change_of, stands
from flatline.hypotheses.part_columns import Parts
from flatline.remarks.columns import (
    OTHER,
    PARTS,
    Column,
    beside_the_matter,
    functions_of,
    listed,
    once,
    sentence,
)
from flatline.remarks.remark import Remark
from flatline.trace import Trace

EXACT = 1e-6
"""Share of the reward's variance that its parts may leave open and still be all of it."""
WEIGHT = 1e-3
"""Weights that differ by less are equal."""
SAME = 0.999
"""The same where one says all that the other says, if with another sign or scale."""
TWINS = 0.9
"""Correlation, of rows and of their differences, of two columns that are one signal."""
CEILING = 0.95
"""Share of its largest value that a part has on average, from the start, where it has no room."""
CHANGES = 4
"""Rows at which a column changes that nobody sets, at least."""
SETTLED = 0.1
"""Share of the rows after which a column is one number, of a setting that was warmed up."""
TOUCHED = 3
"""Rows that have exactly its largest value, at least, where there is a ceiling."""
NEXT_TO = 0.9
"""The same of the last third, where it has come there."""
FOLLOWS = 0.75
"""The same of the reward and the length of completions."""
MOST = 0.8
"""Correlation of the reward with the part that it follows, to be told."""
SHOWN = 0.1
"""Share of the gain from which on a part of it is told."""
AT_MOST = 200
"""Columns that may be parts; every pair of them is compared."""
MANY = 4
"""Reward functions of which it goes without saying that they are added."""
ROWS, TIMES = 10, 1e-3
"""Rows of a column that others are compared with, and by how much a quotient may be off."""


def parts(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """Everything that the parts say, and how the reward goes with other columns."""
    yield from related(trace, columns)
    found = functions_of(trace)
    if found is None or len(found.columns) > AT_MOST:
        return
    twins = _twins(found)
    weights = _weights(found, {twin.name for twin in twins if abs(twin.close) >= SAME})
    made = [*_sum(found, weights), *_gain(found, weights), *_leading(found, weights)]
    if made:
        yield Remark(10, " ".join(made))
    yield from _at(22, _ceiling(found))
    yield from _at(23, _opposed(found))
    if told := list(_told_twins(found, twins)):
        yield Remark(45, sentence(told))


def _at(order: float, texts: Iterator[str]) -> Iterator[Remark]:
    return (Remark(order, text) for text in texts)


def _weights(found: Parts, left_out: set[str]) -> dict[str, float]:
    """Part -> its weight in the reward; empty where the parts do not add up to it."""
    if len(found.reward) > 3 * len(found.moving) and found.named and np.ptp(found.reward) > 0:
        rest = found.reward - np.sum(list(found.columns.values()), axis=0)
        if rest.var() <= EXACT * found.reward.var():
            return dict.fromkeys(found.moving, 1.0)  # of many sums that fit, the plain one
    moving = {n: v for n, v in found.moving.items() if n not in left_out}
    if not moving or len(found.reward) < 3 * len(moving) or np.ptp(found.reward) == 0:
        return {}
    table = np.stack([*moving.values(), np.ones_like(found.reward)], axis=1)
    chosen, rest = [len(moving)], found.reward - found.reward.mean()
    weights = np.zeros(1)
    while rest.var() > EXACT * found.reward.var() and len(chosen) <= len(moving):
        chosen.append(_closest(table, rest, chosen))
        weights, *_ = np.linalg.lstsq(table[:, chosen], found.reward, rcond=None)
        rest = found.reward - table[:, chosen] @ weights
    if rest.var() > EXACT * found.reward.var():
        return {}
    names = list(moving)
    known = {names[at]: float(w) for at, w in zip(chosen[1:], weights[1:], strict=True)}
    return {name: weight for name, weight in known.items() if abs(weight) > WEIGHT}


def _closest(table: np.ndarray, rest: np.ndarray, chosen: list[int]) -> int:
    """The column that says most of what is left."""
    apart = table - table.mean(axis=0)
    size = np.linalg.norm(apart, axis=0)
    says = np.abs(apart.T @ rest) / np.where(size > 0, size, np.inf)
    says[chosen] = -1.0
    return int(says.argmax())


def _sum(found: Parts, weights: dict[str, float]) -> Iterator[str]:
    plain_sum = all(abs(weight - 1) < WEIGHT for weight in weights.values())
    if found.named and plain_sum and len(weights) not in range(2, MANY):
        return
    if weights:
        told = " ".join(_term(name, weight) for name, weight in weights.items())
        rest = float(np.mean(found.reward - sum(w * found.columns[n] for n, w in weights.items())))
        more = f" {'-' if rest < 0 else '+'} {abs(rest):.3g}" if abs(rest) > WEIGHT else ""
        yield f"The reward is {told.removeprefix('+ ')}{more}, as its columns add up."


def _term(name: str, weight: float) -> str:
    times = "" if abs(abs(weight) - 1) < WEIGHT else f"{abs(weight):.3g} "
    return f"{'-' if weight < 0 else '+'} {times}`{name}`"


def _ceiling(found: Parts) -> Iterator[str]:
    for name, values in found.moving.items():
        if not found.named and beside_the_matter(name):
            continue  # what fills a memory is no part
        top = float(values.max())
        changes = np.flatnonzero(np.diff(values))
        setting = len(changes) < CHANGES or changes[-1] < SETTLED * len(values)
        if setting or (values == top).sum() < TOUCHED:  # the largest of some means is no ceiling
            continue
        reached = float((values == top).mean())
        early = values[: len(values) // 3].mean()
        late = values[-(len(values) // 3) :]
        if found.whole[name].mean() < NEXT_TO * values.mean():
            continue  # rows without a reward, or without another part, are below it
        most = f"{top:.3g} is the most that any row has"
        if top > 0 and reached > 0.2 and early >= CEILING * top and values.mean() >= CEILING * top:
            told = f"{values.mean():.3g} on average, and {most}"
            yield f"`{name}` is at its ceiling from the start: {told}."
        elif stands(values, found.step):
            continue  # it has not come anywhere
        elif top > 0 and (late == top).mean() > 0.2 and late.mean() >= NEXT_TO * top:
            yield f"`{name}` is next to its ceiling at the end: {late.mean():.3g}, and {most}."


class Twin(NamedTuple):
    """A column that repeats an earlier one."""

    name: str
    other: str
    close: float
    """1 where it is the same in every row, below 0 where it mirrors the other."""


def _twins(found: Parts) -> list[Twin]:
    twins: list[Twin] = []
    seen: dict[str, np.ndarray] = {}
    for name, values in found.moving.items():
        near = [Twin(name, other, _alike(values, before)) for other, before in seen.items()]
        twin = max(near, key=lambda one: abs(one.close), default=None)
        if twin is not None and abs(twin.close) >= TWINS:
            twins.append(twin)
        if twin is None or twin.close != 1:
            seen[name] = values
    return twins


def _alike(one: np.ndarray, other: np.ndarray) -> float:
    """1 for the same values, else the weaker of two correlations: of rows, and of differences."""
    if np.allclose(one, other, rtol=1e-5, atol=1e-9):
        return 1.0
    of_rows = float(np.corrcoef(one, other)[0, 1])
    apart = np.diff(one), np.diff(other)
    if not all(np.ptp(each) > 0 for each in apart):
        return 0.0
    between = float(np.corrcoef(*apart)[0, 1])
    close = min(abs(of_rows), abs(between), 0.999)
    return close if of_rows * between > 0 and of_rows > 0 else -close


def _told_twins(found: Parts, twins: list[Twin]) -> Iterator[str]:
    for name, other, close in twins:
        pair = f"`{other}` and `{name}`"
        if close == 1:
            yield f"{pair} are the same in all {len(found.reward)} rows"
        elif close > 0:
            yield f"{pair} go together (r = {close:.2f}), nearly one signal"
        else:
            yield f"{pair} mirror each other (r = {close:.2f})"


def _opposed(found: Parts) -> Iterator[str]:
    """Two columns that end in the same word should agree, and do not: a scorer and its judge."""
    by_word: dict[str, list[str]] = {}
    for name in found.columns:
        by_word.setdefault(re.split(r"[_/.\- ]", name)[-1], []).append(name)
    for pair in (names for names in by_word.values() if len(names) == 2):
        silent, other = sorted(pair, key=lambda name: name in found.moving)
        if other in found.moving and not found.columns[silent].any():
            mean = found.columns[other].mean()
            yield f"`{silent}` and `{other}` disagree: 0 in every row, and {mean:.2g} on average."


def _gain(found: Parts, weights: dict[str, float]) -> Iterator[str]:
    """Which part made the change of the reward; where it has none, which parts cancel."""
    # As the trend tells it, beside which this stands: what is exact needs no more care.
    total = change_of(found.reward, found.step, careful=False)
    moves = {name: change_of(values, found.step) for name, values in found.moving.items()}
    if total is None:
        return
    if len(weights) > 1 and (total.low > 0 or total.high < 0):
        gains = {n: w * c.value for n, w in weights.items() if (c := moves[n]) is not None}
        most = sorted(gains, key=lambda name: -abs(gains[name]))
        told = [n for n in most if abs(gains[n]) >= SHOWN * abs(total.value)]
        rest = [f"`{n}`" for n in most if n not in told]
        each = listed([f"`{name}` {gains[name]:+.3g}" for name in told])
        hardly = f" {listed(rest)} hardly count{'s' if len(rest) == 1 else ''}." if rest else ""
        yield f"Of the change of {total.value:+.3g} between first and last third: {each}.{hardly}"


def _leading(found: Parts, weights: dict[str, float]) -> Iterator[str]:
    """The part that the reward follows from row to row."""
    if len(weights) < 2:
        return
    follows = {n: float(np.corrcoef(found.columns[n], found.reward)[0, 1]) for n in weights}
    name = max(follows, key=lambda one: abs(follows[one]))
    if abs(follows[name]) >= MOST:
        yield f"From row to row the reward follows `{name}` (r = {follows[name]:.2f})."


def related(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """How the reward and others go with each other, whatever they are called."""
    by_name = {one.name: one for one in columns}
    reward, length = by_name.get("reward"), by_name.get("completion_length")
    if reward is None or reward.shape.constant:
        return
    if length is not None:
        follow = [reward, *(one for one in once(columns) if one.words.rank in (PARTS, OTHER))]
        if told := list(_follow(follow, length)):
            yield Remark(13, f"From row to row {'; '.join(told)}.")
    others = [one for one in columns if not one.ours and not one.part and not one.minor]
    same = {one.name: t for one in others if (t := _times(reward, one)) is not None}
    for rows in dict.fromkeys(rows for _, rows in same.values()):
        those = [one for one in others if same.get(one.name, (0, 0))[1] == rows]
        yield Remark(14, _products(those, [same[one.name][0] for one in those], rows))
    for one in others:
        yield from _at(14, _multiple(reward, one, trace.steps["step"]))


def _follow(several: list[Column], length: Column) -> Iterator[str]:
    """What is the length of completions under another name."""
    for one in several:
        known = np.isfinite(one.values) & np.isfinite(length.values)
        values, tokens = one.values[known], length.values[known]
        if len(values) < 2 * ROWS or not np.ptp(values) > 0 or not np.ptp(tokens) > 0:
            continue
        close = _alike(values, tokens)
        if (FOLLOWS if one is several[0] else TWINS) <= abs(close) < 1:
            goes = "higher" if close > 0 else "lower"
            follows = f"follows the length of completions (r = {close:.2f})"
            yield f"{one.subject} {follows}, {goes} where they are longer"


def _times(reward: Column, other: Column) -> tuple[float, int] | None:
    """How many times another column the reward is, and in how many rows, where it is so in all."""
    known = np.isfinite(reward.values) & np.isfinite(other.values)
    paid, values = reward.values[known], other.values[known]
    there = (values != 0) & (paid != 0)
    if there.sum() < ROWS or ((values == 0) != (paid == 0)).any() or not np.ptp(values) > 0:
        return None
    times = paid[there] / values[there]
    exact = np.abs(times / np.median(times) - 1).max() <= 2 * TIMES
    return (float(np.median(times)), len(paid)) if exact else None


def _products(columns: list[Column], times: list[float], rows: int) -> str:
    """What the reward is in other words."""
    by_factor: dict[str, list[str]] = {}
    for one, factor in zip(columns, times, strict=True):
        same = abs(factor - 1) < TIMES
        told = "the same as" if same else f"{factor:.3g} times"
        by_factor.setdefault(told, []).append(one.subject)
    told = ", and ".join(f"{factor} {listed(names)}" for factor, names in by_factor.items())
    return f"The reward is {told} in all {rows} rows."


def _multiple(reward: Column, other: Column, step: np.ndarray) -> Iterator[str]:
    """A column that is the reward divided by a number, which may change once."""
    known = np.isfinite(reward.values) & np.isfinite(other.values)
    paid, values, step = reward.values[known], other.values[known], step[known]
    there = (values != 0) & (paid != 0)
    if there.sum() < ROWS or ((values == 0) != (paid == 0)).any() or not np.ptp(values) > 0:
        return
    times, step = paid[there] / values[there], step[there]
    jump = int(np.abs(np.diff(times)).argmax()) + 1
    before, after = (float(np.median(each)) for each in (times[:jump], times[jump:]))
    exact = np.concatenate([times[:jump] / before, times[jump:] / after])
    if np.abs(exact - 1).max() > TIMES:
        return
    if abs(before / after - 1) >= 2 * TIMES and min(jump, len(times) - jump) >= ROWS // 2:
        since = f"{_product(after, other)} since step {step[jump]:g}"
        yield f"The reward is {_product(before, other)} at first, and {since}."


def _product(times: float, one: Column) -> str:
    same = abs(times - 1) < TIMES
    return f"the same as {one.subject}" if same else f"{times:.3g} times {one.subject}"
