"""Two events that go on: a reward that steps to another level with other columns, and a sampler
that parts from its trainer from one step on."""

import re

import numpy as np

from flatline.remarks.columns import HELD_OUT, Column, listed, short
from flatline.remarks.remark import Event
from flatline.trace.importers.resolve import plain

HALF = 0.5
"""Share of all its ups and downs that a reward makes in one step."""
LARGE = 0.1
"""Such a step, of the span from 0 to 1, or of that of the rewards where it is more."""
BESIDE = 3
"""Columns that are told with it."""
GROWS = 10.0
"""Times that a gap of sampler and trainer grows."""
NEAR = 0.1
"""Share of the steps within which another column begins to stand."""
_PARTED = re.compile(r"mismatch_?kl|(generation|gen)_kl_error|logprob_gap|logprobs?_abs_diff")


def steps_away(columns: list[Column], outcome: Column) -> Event | None:
    """An outcome that is at another level from one row on, and does not come back."""
    course = outcome.shape.course
    for at, (before, after) in course.jumps.items():
        least = max(LARGE * max(1.0, course.way), HALF * course.way)
        back = abs(course.last - after) > HALF * abs(after - before)
        beside = _with_it(columns, outcome, float(course.step[at]))
        if back or not beside or abs(after - before) < least:
            continue
        word = "rises" if after > before else "falls"
        subject = outcome.subject.replace("the ", "your ", 1) if outcome.ours else outcome.subject
        text = (
            f"At step {course.step[at]:g} {subject} {word} from {outcome.bare(before)} to "
            f"{outcome.number(after)} from one row to the next, and {listed(beside)} at the same "
            f"step; it is {outcome.number(course.last)} at last"
        )
        return Event(f"{text}.", certain=True, moves_reward=after > before)
    return None


def _with_it(columns: list[Column], outcome: Column, step: float) -> list[str]:
    """Columns that go to another level at the same step."""
    told = {}
    for one in columns:
        if one is outcome or one.name in ("learning_rate", "loss") or one.words.rank == HELD_OUT:
            continue
        course = one.shape.course
        for at, (before, after) in course.jumps.items():
            near = abs(int(np.searchsorted(course.step, step)) - at) <= 1
            if near and abs(after - before) >= HALF * course.way and not one.part:
                ends = f"from {one.bare(before)} to {one.number(after)}"
                told[f"{one.subject} goes {ends}"] = one.words.rank
    return sorted(told, key=lambda text: told[text])[:BESIDE]


def parts_company(columns: list[Column]) -> Event | None:
    """A gap of sampler and trainer that stood and grows many times from one step on."""
    for one in columns:
        course = one.shape.course
        if not _PARTED.search(plain(one.name).replace(" ", "_")) or one.shape.rare:
            continue
        until = course.until if one.shape.moves else None
        if until is None or until.value <= 0 or course.last < GROWS * until.value:
            continue
        whole = float(one.shape.step[-1] - one.shape.step[0])
        stand = [
            f"{other.subject} ({other.bare(since.value)})"
            for other in columns
            if other is not one and not other.minor and not other.shape.levels
            for since in [other.shape.course.since]
            if other.shape.moves and since and abs(since.step - until.step) <= NEAR * whole
        ]
        also = f"; since about then {listed(stand[:BESIDE])} stand" if len(stand) > 1 else ""
        also = f"; since about then {stand[0]} stands" if len(stand) == 1 else also
        times = short(float(f"{course.last / until.value:.2g}"))
        return Event(
            f"From about step {until.step:g} on {one.subject} grows {times} times, from "
            f"{one.bare(until.value)}, where it stood, to {one.number(course.last)}: sampler and "
            f"trainer part there{also}.",
            certain=True,
            moves_reward=False,
        )
    return None
