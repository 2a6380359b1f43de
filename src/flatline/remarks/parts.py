"""The parts of a reward, as a log has them: what pays nothing, what pays twice, what made the gain.

Which columns make up the reward, and with which weights, is read off the numbers: it is told where
they add up exactly.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.column_movement import change_of, column, ends, stands, surely
from flatline.hypotheses.part_columns import Parts, parts_of
from flatline.trace import Trace

EXACT = 1e-6
"""Share of the reward's variance that its parts may leave open and still be all of it."""
WEIGHT = 1e-3
"""Weights that differ by less are equal."""
SAME = 0.999
"""The same where one says all that the other says, if with another sign or scale."""
TWINS = 0.9
"""Correlation, of rows and of their differences, of two columns that are one signal."""
NEARLY_NEVER = 0.8
"""Share of the rows in which a part that hardly pays is 0."""
CEILING = 0.95
"""Share of its largest value that a part has on average, from the start, where it has no room."""
TOUCHED = 3
"""Rows that have exactly its largest value, at least, where there is a ceiling."""
NEXT_TO = 0.9
"""The same of the last third, where it has come there."""
MOST = 0.8
"""Correlation of the reward with the part that it follows, to be told."""
ENOUGH = 20
"""Rows that show that a part does not move."""
LAST = 5
"""Rows at the end, at least, in which a share is gone; a tenth of the run where that is more."""
SHOWN = 0.1
"""Share of the gain from which on a part of it is told."""


def parts(trace: Trace) -> Iterator[str]:
    """Everything that the parts say."""
    found = parts_of(trace)
    if found is None:
        return
    twins = _twins(found)
    weights = _weights(found, {twin.name for twin in twins if abs(twin.close) >= SAME})
    yield from _sum(found, weights)
    yield from _constant(found)
    yield from _seldom(found)
    yield from _ceiling(found, weights)
    yield from _told_twins(found, twins)
    yield from _opposed(found)
    yield from _gain(found, weights)
    yield from _leading(found, weights)
    yield from _length(trace, found, weights)
    yield from _against(found, weights)


def _weights(found: Parts, left_out: set[str]) -> dict[str, float]:
    """Part -> its weight in the reward; empty where the parts do not add up to it."""
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
    if weights and not (found.named and plain_sum):
        told = " ".join(_term(name, weight) for name, weight in weights.items())
        rest = float(np.mean(found.reward - sum(w * found.columns[n] for n, w in weights.items())))
        more = f" {'-' if rest < 0 else '+'} {abs(rest):.3g}" if abs(rest) > WEIGHT else ""
        yield f"The reward is {told.removeprefix('+ ')}{more}, as its columns add up."


def _term(name: str, weight: float) -> str:
    times = "" if abs(abs(weight) - 1) < WEIGHT else f"{abs(weight):.3g} "
    return f"{'-' if weight < 0 else '+'} {times}`{name}`"


def _constant(found: Parts) -> Iterator[str]:
    rows = len(found.reward)
    still = {n: float(v[0]) for n, v in found.columns.items() if n not in found.moving}
    nothing = [f"`{name}`" for name, value in still.items() if value == 0]
    if nothing:
        yield f"{_listed(nothing)} {_is(nothing)} 0 in all {rows} rows."
    for name, value in still.items():
        if value and found.named:
            yield f"`{name}` is {value:.3g} in all {rows} rows: it pays everybody the same."


def _seldom(found: Parts) -> Iterator[str]:
    if not found.named:
        return
    shares = {name: float((values == 0).mean()) for name, values in found.moving.items()}
    for name, share in shares.items():
        if share >= NEARLY_NEVER:
            yield f"`{name}` is 0 in {share:.0%} of the {len(found.reward)} rows."


def _ceiling(found: Parts, weights: dict[str, float]) -> Iterator[str]:
    for name, values in found.moving.items():
        top = float(values.max())
        if (values == top).sum() < TOUCHED:  # the largest of some means is no ceiling
            continue
        reached = float((values == top).mean())
        early = values[: len(values) // 3].mean()
        late = values[-(len(values) // 3) :]
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
            yield f"{pair} are the same in all {len(found.reward)} rows: one signal, two names."
        elif close > 0:
            yield f"{pair} go together (r = {close:.2f}): nearly one signal."
        else:
            yield f"{pair} mirror each other (r = {close:.2f}): where one is high the other is low."


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
        listed = _listed([f"`{name}` {gains[name]:+.3g}" for name in told])
        hardly = f" {_listed(rest)} hardly count{'s' if len(rest) == 1 else ''}." if rest else ""
        yield f"Of the change of {total.value:+.3g} between first and last third: {listed}.{hardly}"
        return
    if not found.named or len(found.columns) < 2:
        return
    hidden = "" if surely(total) else ", and the total does not show it"
    for name in (name for name, change in moves.items() if surely(change)):
        before, after = ends(found.moving[name], found.step)
        word = "rises" if after > before else "falls"
        yield f"`{name}` {word} from {before:.3g} to {after:.3g}{hidden}."
    still = [n for n, v in found.moving.items() if len(v) >= ENOUGH and stands(v, found.step)]
    if still:
        stay = _listed([f"`{name}` stays at {found.moving[name].mean():.3g}" for name in still])
        yield f"{stay}, from start to end."


def _leading(found: Parts, weights: dict[str, float]) -> Iterator[str]:
    """The part that the reward follows from row to row."""
    if len(weights) < 2:
        return
    follows = {n: float(np.corrcoef(found.columns[n], found.reward)[0, 1]) for n in weights}
    name = max(follows, key=lambda one: abs(follows[one]))
    if abs(follows[name]) >= MOST:
        yield f"From row to row the reward follows `{name}` (r = {follows[name]:.2f})."


def _length(trace: Trace, found: Parts, weights: dict[str, float]) -> Iterator[str]:
    """Parts of a sum that are the length of what was written, whatever they are called."""
    length = column(trace, "completion_length")
    if len(weights) < 2 or not len(length):
        return
    length = length[np.isin(trace.steps["step"], found.step)]
    if not np.isfinite(length).all() or not np.ptp(length) > 0:
        return
    for name in weights:
        close = _alike(found.columns[name], length)
        if abs(close) >= TWINS:
            yield f"`{name}` follows the length of completions (r = {close:.2f})."


def _against(found: Parts, weights: dict[str, float]) -> Iterator[str]:
    """A share that is not paid, and moves against the reward: what is paid may not be meant."""
    paid = surely(change_of(found.reward, found.step))
    if found.named or weights or not paid:
        return
    reward = "rises" if paid > 0 else "falls"
    for name, values in found.moving.items():
        if values.min() < 0 or values.max() > 1:
            continue
        before, after = ends(values, found.step)
        none = len(values) - 1 - int(np.flatnonzero(values)[-1])
        if surely(change_of(values, found.step)) == -paid:
            way = "falls" if paid > 0 else "rises"
            yield f"`{name}` {way} from {before:.2g} to {after:.2g} while the reward {reward}."
        elif paid > 0 and none >= max(LAST, SHOWN * len(values)) and before > 0:
            since = f"in all {none} rows since step {found.step[-none]:g}"
            yield f"`{name}` is 0 {since} ({before:.2g} at first), while the reward {reward}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
