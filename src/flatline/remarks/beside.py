"""What columns say beside each other: what moved before the reward turned, whether there was
anything to learn from while it stood, and how far training and evaluation are apart."""

import re
from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.levels import Point
from flatline.remarks.columns import HELD_OUT, POLICY, Column, listed, once, sentence, short
from flatline.remarks.remark import Remark
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

LOST = 0.15
"""Share of what a reward gained that it loses again after its highest level, to be asked what moved
before."""
GONE = 0.3
"""Share of its whole way that a column has gone when the reward turns, where that is less than its
level."""
TOLD = 4
"""Columns that are told."""
ALIVE, DEAD = 0.6, 0.6
"""Share of its first level that a gradient still has, and of equal groups, where there is something
to learn from."""
SOLVED = 0.93
"""Reward, of 1, from which on there is little more to earn."""
ONE_SCALE = 0.25
"""How far a reward and a score of an evaluation are apart at first, where both are shares."""
APART = 0.15
"""By how much their gap changes, to be told."""
FEWEST = 3
"""Evaluations."""
_STEM = re.compile(r"(pass|avg|mean|best|maj|acc|score|reward|solve|correct)")
"""Where a name ceases to say which problems a score is of."""


def beside(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """Everything of that kind."""
    columns = once(columns)
    by_name = {one.name: one for one in columns}
    scores = [one for one in columns if one.words.rank == HELD_OUT and _is_share(one)]
    scores = [one for one in scores if len(one.shape) >= FEWEST]
    if (reward := by_name.get("reward")) is not None and len(reward.shape):
        yield from _moved_before(reward, columns)
        yield from _something_to_learn(reward, by_name)
        yield from _solved(reward)
        if _is_share(reward) and scores:
            yield from _gap(reward, scores[0])
    names = trace.run.get("aliases") or {}
    of_set = {one.name: _STEM.split(plain(names.get(one.name, one.name)))[0] for one in scores}
    yield from _two_scores(scores, of_set)


def _is_share(one: Column) -> bool:
    values = one.shape.values
    return bool(len(values) and values.min() >= 0 and values.max() <= 1)


def turns_down(reward: Column) -> Point | None:
    """The highest level of a reward that certainly comes down from it again, and does not come
    back."""
    course = reward.shape.course
    top = max(course.turns, key=lambda one: one.value, default=None)
    if top is None or top.value - course.last < LOST * course.way:
        return None
    return top if top.value > max(course.first, course.last) else None


def _moved_before(reward: Column, columns: list[Column]) -> Iterator[Remark]:
    """Columns that certainly stood and left their level before the reward came to its highest."""
    top = turns_down(reward)
    if top is None:
        return
    left: list[tuple[float, float, Column]] = []
    for one in columns:
        if one is reward or one.minor or one.part or one.setting or one.shape.rare:
            continue
        course = one.shape.course
        until = course.until if one.shape.moves else None
        if until is None or until.step >= top.step or one.words.rank == HELD_OUT:
            continue
        gone, whole = _at(one, top.step) - until.value, course.last - until.value
        if gone * whole > 0 and abs(gone) >= min(GONE * abs(whole), abs(until.value)):
            left.append((until.step, until.value, one))
    first = sorted(left, key=lambda each: each[:2])[:TOLD]
    if first:
        told = [
            f"{one.subject} stays at about {one.number(level)} only until step {step:g} and is "
            f"{one.bare(one.shape.course.last)} at last"
            for step, level, one in first
        ]
        yield Remark(
            1.5, f"Before the reward turns down (around step {top.step:g}), {listed(told)}."
        )


def _something_to_learn(reward: Column, by_name: dict[str, Column]) -> Iterator[Remark]:
    """That a reward which stands does not do so for want of gradients or of different rewards."""
    norm, dead = by_name.get("grad_norm"), by_name.get("zero_std_share")
    stands = not reward.shape.moves or reward.shape.course.since is not None
    if norm is None or not stands or not len(norm.shape) or norm.shape.rare:
        return
    course = norm.shape.course
    if course.last < ALIVE * course.first or not course.last > 0:
        return
    told = [f"the gradient norm is {short(course.last)} at last ({short(course.first)} at first)"]
    if dead is not None and len(dead.shape):
        if dead.shape.course.last > DEAD:
            return
        told.append(f"rewards differ in {1 - dead.shape.course.last:.0%} of the groups")
    if since := reward.shape.course.since:
        yield Remark(
            6, f"While the reward stands (since about step {since.step:g}), {listed(told)}."
        )
    elif len(told) > 1 and any(by_name[name].shape.moves for name in POLICY if name in by_name):
        yield Remark(6, sentence([f"there is something to learn from: {listed(told)}"]))


def _solved(reward: Column) -> Iterator[Remark]:
    """That a reward stands because there is hardly more to earn."""
    since = reward.shape.course.since
    if since is None or not _is_share(reward) or since.value < SOLVED:
        return
    steps = reward.shape.step[-1] - since.step
    yield Remark(
        1.7,
        f"Since about step {since.step:g} the reward is about {short(since.value)}: where an "
        f"answer earns 1 at most, the last {steps:g} steps had little left to gain.",
    )


def _at(one: Column, step: float) -> float:
    """Its level around a step."""
    return one.shape.course.level_at(step)


def _gap(reward: Column, score: Column) -> Iterator[Remark]:
    """How far training is above an evaluation of the same scale, at first and at last."""
    values, step = score.shape.values, score.shape.step
    after = [at for at in range(len(values)) if reward.shape.step[0] <= step[at]]
    if len(after) < FEWEST:
        return
    first, last = after[0], after[-1]
    gaps = [_at(reward, float(step[at])) - float(values[at]) for at in (first, last)]
    if abs(gaps[0]) > ONE_SCALE or abs(gaps[1] - gaps[0]) < APART:
        return
    yield Remark(
        4.2,
        f"The reward less {score.subject} is {gaps[0]:+.2f} at step {step[first]:g} and "
        f"{gaps[1]:+.2f} at step {step[last]:g}.",
    )


def _two_scores(scores: list[Column], of_set: dict[str, str]) -> Iterator[Remark]:
    """Two scores of the same problems whose gap changes most."""
    found = {}
    for at, one in enumerate(scores):
        for other in scores[at + 1 :]:
            if of_set[one.name] != of_set[other.name]:
                continue
            if np.array_equal(one.shape.step, other.shape.step) and len(one.shape) >= 2 * FEWEST:
                gap = one.shape.values - other.shape.values
                gap = gap if gap.mean() > 0 else -gap
                ends = float(gap[:2].mean()), float(gap[-2:].mean())
                off = float(np.diff(gap).std()) / 2**0.5
                if abs(ends[1] - ends[0]) > max(APART, 3 * off):
                    found[f"{one.subject} and {other.subject}"] = ends
    for pair in sorted(found, key=lambda pair: -abs(found[pair][1] - found[pair][0]))[:1]:
        first, last = found[pair]
        yield Remark(4.3, f"The gap of {pair} is {first:.2f} at first and {last:.2f} at last.")
