"""Scores of problems that are not trained on: which columns are such, how they go, and whether they
follow the training reward."""

import math
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.column_movement import change_of, ends, metric, surely
from flatline.hypotheses.course import slope
from flatline.hypotheses.trend import FEWEST, by_unit, rows_in_one, trend_of, widened
from flatline.stats import LEVEL, Estimate, difference_of_means, t_score
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

COMPARED = 2
"""Evaluations at either end, and around the best, that are compared."""
SELDOM = 0.99
"""Share of courses of noise that stay below what is called a rise or a fall."""
PERHAPS = 0.95
"""The same of what is told as a guess."""
DRAWN = 4000
"""Courses of noise that show what the best of so many evaluations is by chance."""
ALIKE = 0.5
"""How alike neighbours are in these: evaluations of one set of problems have their mistakes in
common, and a policy that wanders makes them more so."""
FALLS = 0.05
"""Fall of a score that matters; the trend's own smallest change."""
ROUNDING, SAME = 1e-9, 1e-4
FOLLOWS = 0.5
"""Share of the training's gain that must be excluded before an evaluation is said not to follow.
Both are asked of the same stretch of the run. An interval that only reaches to 0 is no proof: six
evaluations that rise all along have one."""
_EVALUATED = re.compile(r"(eval|val|valid|validation|dev|test|exam|held(_?out)?)([-_/].*)?")
_SCORE = re.compile(
    r"reward|acc|score|pass|solve|success|win|correct|exact|(^|[/_])(em|f1|avg@|mean@|best@|maj@)"
)
_TRIES = re.compile(r"(?P<kind>pass|best|solved?|mean|avg)_?(@|at_?)(?P<tries>\d+)(?!\d)(/mean)?")
"""A score by how many answers were tried; the mean of several tries is that of one."""
_NO_SCORE = re.compile(
    r"length|lens?($|[/_])|token|advantage|loss|entropy|(^|[/_])kl|ratio|std|seconds|time|"
    r"(^|[/_])(min|max|num|count|total|unsolved|penalty|steps?)($|[/_@])|rewards/"
)
"""What evaluations log beside scores: sizes, spreads, speed, and parts that may be penalties."""
_BENCHMARK = re.compile(
    r"[a-z]+/(aime|amc|math|gsm|mmlu|gpqa|humaneval|mbpp|minerva|olympiad|livecode|ifeval|bbh|hotpot|"
    r"musique|triviaqa|swe)[\w.-]*"
)
"""Names of sets of problems: what is logged under them without another word is how many are
solved."""
_SHARE = re.compile(r"acc|pass|solve|success|win|correct|exact|(^|[/_])(em|f1)")
"""Scores that are shares, of 1 or of 100."""


def is_evaluation(name: str) -> bool:
    """Whether a column is of problems that are not trained on, by its name."""
    return _EVALUATED.fullmatch(plain(name)) is not None


def is_score(name: str, values: np.ndarray) -> bool:
    """Whether a column of an evaluation says how good answers are, by its name and its numbers."""
    text = plain(name)
    named = _SCORE.search(text) or _BENCHMARK.fullmatch(text)
    if not is_evaluation(name) or not named or _NO_SCORE.search(text):
        return False
    known = values[np.isfinite(values)]
    share = _SHARE.search(text) is not None or not _SCORE.search(text)
    return bool(len(known)) and not (share and (known.min() < 0 or known.max() > 100))


def scores_of(trace: Trace) -> dict[str, np.ndarray]:
    """Scores of problems that are not trained on, by the log's own names."""
    columns = {name: metric(trace, name) for name in trace.metric_names if is_evaluation(name)}
    found: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if is_score(name, values) and not repeats(values, found.values()):
            found[name] = values
    return found


class Tries(NamedTuple):
    """Two scores of one set of problems: solved at the first try, and by one of several."""

    one: str
    several: str


def by_tries(trace: Trace) -> Tries | None:
    """The scores of one try and of the most, where a log has both under otherwise equal names."""
    found: dict[str, dict[int, str]] = {}
    for name in scores_of(trace):
        counted = _TRIES.search(plain(name))
        if counted is not None:
            tries = 1 if counted["kind"] in ("mean", "avg") else int(counted["tries"])
            found.setdefault(plain(name).replace(counted[0], ""), {})[tries] = name
    both = [each for each in found.values() if 1 in each and len(each) > 1]
    return Tries(both[0][1], both[0][max(both[0])]) if len(both) == 1 else None


def narrows(trace: Trace) -> Tries | None:
    """The same where one try certainly does better and several do certainly worse: answers have
    become alike, which is no fall of what is scored."""
    tries = by_tries(trace)
    if tries is None:
        return None
    one, several = (metric(trace, name) for name in tries)
    rises, falls = change_of_score(one), change_of(several, trace.steps["step"])
    # That one try does better is what a run is for: what several do must be surer.
    if rises is None or not rises.low > 0 or surely(falls) > -1:
        return None
    before, after = ends(several, trace.steps["step"])
    return tries if before - after >= FALLS else None


def repeats(values: np.ndarray, others: Iterable[np.ndarray]) -> bool:
    """Whether a column is another one times a number."""
    return any(_is_multiple(values, other) for other in others)


def _is_multiple(one: np.ndarray, other: np.ndarray) -> bool:
    known = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)) or not known.any():
        return False
    size = float(other[known] @ other[known])
    times = float(one[known] @ other[known]) / size if size > 0 else 0.0
    return bool(np.allclose(one[known], times * other[known], rtol=SAME, atol=ROUNDING))


class Course(NamedTuple):
    """How a score goes that is evaluated now and then."""

    first: float
    last: float
    """Means of the first and of the last `COMPARED` evaluations."""
    best: float
    best_at: float
    """The best evaluation, and its step."""
    rises: bool
    falls: bool
    """Whether it certainly rises from its start to about its best, and falls from there: beyond
    what picking the best of so many evaluations makes of noise."""
    leans: bool
    """Whether its later half is below its earlier one, and its end below its start, as fewer than
    one in twenty courses of noise are."""


def course_of(score: np.ndarray, step: np.ndarray) -> Course | None:
    """None where there are too few evaluations."""
    known = np.isfinite(score)
    values, step = score[known], step[known]
    if len(values) < FEWEST:
        return None
    best = int(values.argmax())
    up, down = _beyond(values[None])[0]
    most = _by_chance(len(values))
    return Course(
        first=float(values[:COMPARED].mean()),
        last=float(values[-COMPARED:].mean()),
        best=float(values[best]),
        best_at=float(step[best]),
        rises=bool(up > most),
        falls=bool(down > most),
        leans=_leans(values),
    )


def _leans(values: np.ndarray) -> bool:
    below = values[-COMPARED:].mean() < values[:COMPARED].mean()
    return bool(below and _halves_apart(values[None])[0] > _halves_by_chance(len(values)))


def _halves_apart(courses: np.ndarray) -> np.ndarray:
    """How far the later half of each course is below the earlier one, in what `_beyond` counts."""
    half = courses.shape[1] // 2
    lower = courses[:, :half].mean(axis=1) - courses[:, -half:].mean(axis=1)
    return np.asarray(lower / np.maximum(_off(courses), ROUNDING))


def _beyond(courses: np.ndarray) -> np.ndarray:
    """How far the best evaluations of each course are above the first ones and above the last, in
    what one evaluation is off."""
    around = np.lib.stride_tricks.sliding_window_view(courses, COMPARED, axis=1).mean(axis=-1)
    off = _off(courses)
    first, last = around[:, 0], around[:, -1]
    up = around[:, COMPARED:].max(axis=1) - first
    down = around[:, :-COMPARED].max(axis=1) - last
    return np.asarray(np.stack([up, down], axis=1) / np.maximum(off, ROUNDING)[:, None])


def _off(courses: np.ndarray) -> np.ndarray:
    """What one evaluation is off from the line between its neighbours, which knows no slope."""
    return np.asarray(np.sqrt((np.diff(courses, n=2, axis=1) ** 2).mean(axis=1) / 6))


@cache
def _by_chance(evaluations: int) -> float:
    """What noise alone seldom reaches in so many evaluations."""
    return float(np.quantile(_beyond(_drawn(evaluations))[:, 1], SELDOM))


@cache
def _halves_by_chance(evaluations: int) -> float:
    """What one in twenty courses of noise reach between their halves."""
    return float(np.quantile(_halves_apart(_drawn(evaluations)), PERHAPS))


def _drawn(evaluations: int) -> np.ndarray:
    drawn = np.random.default_rng(0).normal(size=(DRAWN, evaluations))
    for at in range(1, evaluations):
        drawn[:, at] = ALIKE * drawn[:, at - 1] + math.sqrt(1 - ALIKE**2) * drawn[:, at]
    return drawn


def heldout_change(trace: Trace) -> Estimate | None:
    """Later half of the evaluations less the earlier; None where there are too few."""
    if "heldout_reward" not in trace.steps:
        return None
    return change_of_score(trace.steps["heldout_reward"])


def change_of_score(score: np.ndarray) -> Estimate | None:
    """The same of any score that is evaluated now and then."""
    known = score[np.isfinite(score)]
    half = len(known) // 2
    return difference_of_means(known[:half], known[-half:]) if len(known) >= FEWEST else None


class Behind(NamedTuple):
    """An evaluation that does not follow what is trained."""

    trained: Estimate
    """Gain of the training reward between the times of the two halves of the evaluations."""
    evaluated: Estimate
    """The same of the held-out reward."""


def left_behind(trace: Trace) -> Behind | None:
    """Where the training reward certainly rises, and the held-out reward neither certainly does nor
    may, by `FOLLOWS` as much."""
    trend, evaluated = trend_of(trace), heldout_change(trace)
    if len(trace.rollouts) or trend is None or evaluated is None or not trend.rises:
        return None
    score, trained = trace.steps["heldout_reward"], _trained_meanwhile(trace)
    steep, off = slope(score[np.isfinite(score)])
    climbs = steep > t_score(np.isfinite(score).sum() - 2, LEVEL) * off
    if trained is None or evaluated.low > 0 or climbs:
        return None
    return Behind(trained, evaluated) if _excluded(trained, evaluated) else None


def _excluded(trained: Estimate, evaluated: Estimate) -> bool:
    """Whether the held-out reward lacks more of that share than both are off. One side is asked
    for, so that an interval of 90 % leaves out one in twenty there."""
    free = 2 * (evaluated.n - 1)
    one_sided = t_score(free, 1 - 2 * (1 - LEVEL)) / t_score(free, LEVEL)
    off = math.hypot(evaluated.high - evaluated.value, FOLLOWS * (trained.high - trained.value))
    return evaluated.value + one_sided * off < FOLLOWS * trained.value


def _trained_meanwhile(trace: Trace) -> Estimate | None:
    """How the training reward moves from the time of the earlier half of the evaluations to that
    of the later: thirds of a run are further apart than its halves."""
    score, (reward, step) = trace.steps["heldout_reward"], by_unit(trace)
    at = np.sort(trace.steps["step"][np.isfinite(score)])
    half = len(at) // 2
    known = np.isfinite(reward)
    reward, step = reward[known], step[known]
    early = reward[(step >= at[0]) & (step <= at[half - 1])]
    late = reward[(step >= at[-half]) & (step <= at[-1])]
    if min(len(early), len(late)) < 2:
        return None
    return widened(difference_of_means(early, late), rows_in_one(reward))
