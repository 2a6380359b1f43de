"""What is said of how a column goes is true of what made it: of many made columns, whose course is
known beside their noise, hardly any claim is false."""

import re

import numpy as np
import pytest

from flatline.hypotheses.levels import Course
from flatline.remarks.columns import Column, Words
from flatline.remarks.shape import Noise, Shape
from flatline.remarks.telling import clauses_of, stays

ROWS = (40, 90, 160, 320)
COURSES = 200
FALSE = 0.005
"""Share of all claims that may be false, as noise is now and then what it is not."""


def alike(rows, close, rng):
    """Noise of size 1, each row as alike to the one before."""
    noise = rng.normal(size=rows)
    for at in range(1, rows):
        noise[at] = close * noise[at - 1] + (1 - close**2) ** 0.5 * noise[at]
    return noise


def late(time, rng):
    begin = rng.uniform(0.3, 0.7)
    return np.maximum(time - begin, 0) / (1 - begin)


def dip(time, rng):
    begin = rng.uniform(0.2, 0.6)
    return 1.0 - ((time > begin) & (time < begin + 0.2))


SHAPES = {
    "ramp": lambda time, rng: time * rng.choice([-1, 1]),
    "saturates": lambda time, rng: 1 - np.exp(-time / rng.uniform(0.05, 0.3)),
    "decays": lambda time, rng: np.exp(-time / rng.uniform(0.05, 0.3)),
    "jumps": lambda time, rng: (time > rng.uniform(0.2, 0.8)).astype(float),
    "begins late": late,
    "grows ever faster": lambda time, rng: np.exp(rng.uniform(3, 6) * (time - 1)),
    "hump": lambda time, rng: np.interp(
        time, [0, rng.uniform(0.3, 0.7), 1], [0, 1, rng.uniform(0, 0.8)]
    ),
    "dip": dip,
    "drifts on after a level": lambda time, rng: np.interp(
        time, [0, 0.3, 1], [0, 1, 1 + rng.uniform(-0.4, 0.4)]
    ),
    "stands": lambda time, rng: time * 0,
}


def made(seed):
    """Name of a course, the course, and its rows with noise."""
    rng = np.random.default_rng(seed)
    rows, name = ROWS[seed % len(ROWS)], list(SHAPES)[seed % len(SHAPES)]
    truth = 0.2 + rng.uniform(0.2, 2) * SHAPES[name](np.linspace(0, 1, rows), rng)
    noise = rng.choice([0.01, 0.05, 0.2]) * alike(rows, rng.choice([0, 0, 0.3, 0.6]), rng)
    values = truth + noise
    return name, truth, np.round(values, 2) if rng.random() < 0.3 else values


def close(truth, course, where):
    """How far a level of the truth may be from one that is told."""
    return 0.2 * np.ptp(truth) + 5 * np.std(np.diff(course.values)) / course.rows**0.5


def claims(truth, course):
    """Each claim of a course, and whether it is true."""
    rows, tail = course.rows, truth[-course.rows :].mean()
    head = truth[:rows].mean()
    if since := course.since:
        after = truth[course.step >= since.step]
        room = close(truth, course, after)
        yield "since", np.abs(after - since.value).mean() <= room and abs(tail - since.value) < room
        yield "drift", abs(np.polyfit(np.arange(len(after)), after, 1)[0]) * len(after) <= room
    if until := course.until:
        before = truth[course.step <= until.step]
        room = close(truth, course, before)
        yield "until", np.abs(before - until.value).mean() <= room
    places = np.searchsorted(course.step, [turn.step for turn in course.turns])
    around = [truth[max(at - rows // 2, 0) : at + rows // 2 + 1].mean() for at in places]
    points = [head, *around, tail]
    if course.turns:
        told = [course.first, *(turn.value for turn in course.turns), course.last]
        yield "turns", bool((np.diff(told) * np.diff(points) > 0).all())
    late, early = course.most
    way = (tail - head) or np.inf
    if late:
        yield "late", (truth[np.searchsorted(course.step, late.step)] - head) / way < 0.4
    if early:
        yield "early", (truth[np.searchsorted(course.step, early.step)] - head) / way > 0.6
    late = abs(np.diff(truth)[-(len(truth) // 3) :].mean())
    if course.pace and np.ptp(truth):
        pace = late / np.ptp(truth) * len(truth)
        yield "pace", pace > 0.8 if course.pace > 0 else pace < 0.7
    for at, (before, after) in course.jumps.items():
        yield "jumps", abs(truth[at] - truth[at - 1]) > abs(after - before) / 3


def column(values):
    step = np.arange(len(values)) + 1.0
    return Column("c", Words("`c`", 6), values, Shape(values, step, Noise(10)))


def printed(truth, one):
    """Each claim of the clauses of a column, and whether it is true."""
    course = one.shape.course
    room = close(truth, course, truth) + 0.1 * np.ptp(truth)
    levels = np.convolve(truth, np.ones(course.rows) / course.rows, "valid")
    for clause in clauses_of(one):
        found = re.match(r"(rises|falls) from (\S+) to (\S+)", clause.text)
        if found:
            first, last = (float(found[at].strip(",;)").replace(",", "")) for at in (2, 3))
            top = "then" in clause.text
            end = min(levels, key=lambda level: abs(level - last)) if top else levels[-1]
            yield "from", abs(levels[0] - first) <= room or "step" in clause.text
            yield "to", abs(end - last) <= room
            yield "way", (found[1] == "rises") == (end > levels[0])
    if stays(one):
        yield "stays", np.ptp(levels) <= 0.25 * abs(truth.mean())


@pytest.fixture(scope="module")
def told():
    found = []
    for seed in range(COURSES):
        name, truth, values = made(seed)
        one = column(values)
        truth = truth[one.shape.course.step.astype(int) - 1]  # of the rows that do not stand out
        for claim, right in [*claims(truth, one.shape.course), *printed(truth, one)]:
            found.append((claim, bool(right), name, seed))
    return found


def test_hardly_any_claim_about_a_course_is_false(told):
    false = [one for one in told if not one[1]]
    assert len(told) > 2 * COURSES
    assert len(false) <= FALSE * len(told), false


@pytest.mark.parametrize("claim", ["since", "until", "turns", "late", "early", "jumps", "stays"])
def test_every_kind_of_claim_is_made(told, claim):
    assert sum(one[0] == claim for one in told) >= 5


def test_noise_is_not_said_to_turn_or_to_jump_however_alike_its_rows_are():
    rng = np.random.default_rng(1)
    courses = [
        Course(alike(rows, near, rng), np.arange(rows) + 1.0)
        for rows in ROWS
        for near in (0.0, 0.3, 0.6, 0.9)
        for _ in range(20)
    ]
    assert sum(one.certainly_turns or bool(one.jumps) for one in courses) <= 1


def test_a_level_that_the_last_tenth_leaves_is_none():
    rng = np.random.default_rng(2)
    values = np.concatenate([np.linspace(0, 1, 60), np.ones(90), np.full(20, 0.8)])
    course = Course(values + 0.02 * rng.normal(size=170), np.arange(170) + 1.0)
    assert course.since is None or course.since.step > 150


TIME = np.linspace(0, 1, 240)


@pytest.mark.parametrize(
    ("truth", "pattern", "values"),
    [
        (  # a hump, with its top and both ends
            np.interp(TIME, [0, 0.6, 1], [0.4, 0.7, 0.5]),
            r"rises from (\S+) to (\S+) around step (\d+), then falls to (\S+)",
            [0.42, 0.68, 144, 0.52],
        ),
        (np.interp(TIME, [0, 0.6, 1], [0.1, 0.1, 0.9]), r"until step (\d+)", [144]),
        (1 - np.exp(-TIME / 0.5), "ever more slowly", []),
        (2 + TIME + TIME**2, "goes on faster at the end", []),
    ],
)
def test_a_course_is_told_with_its_turns_and_how_it_ends(truth, pattern, values):
    by = 0.02 if values else 0.005
    [clause] = clauses_of(column(truth + by * np.random.default_rng(3).normal(size=240)))
    found = re.search(pattern, clause.text)
    assert found, clause.text
    assert [float(one) for one in found.groups()] == pytest.approx(values, rel=0.15)
