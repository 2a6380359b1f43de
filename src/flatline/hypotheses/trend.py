"""Does the reward move at all? Asked of the raw rewards, never of a smoothed curve.

The first third of the steps is compared with the last, and where the level certainly changes in
between (`course.py`), that is said with it: a reward that rose and fell again has equal thirds. The
unit is a group, one visit to one prompt: its rollouts are not independent, so they count once. Of a
log without rollouts the unit is a row; where somebody smoothed it, so many rows as hold what one
raw row would.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.course import SMOOTH, Stretch, alike, slope, stretches
from flatline.hypotheses.levels import Course
from flatline.hypotheses.logs import rows_in_words, spacing
from flatline.hypotheses.one_number import one_number_in_words
from flatline.stats import LEVEL, Estimate, difference_of_means, is_constant, t_score
from flatline.trace import Trace
from flatline.trace.memo import once

FEWEST = 6
"""Steps below which thirds are too short to compare."""
SMALLEST = 0.05
"""A change of the reward that matters, where rewards are 0 to 1; of their span where they go
further."""
RAW = 0.3
"""Correlation of a row of a log with the one before, below which rows count as independent. Eight
real logs: at most 0.1; one that was smoothed with 0.9: 0.9."""
HARDLY = 0.02
"""A certain rise that is certainly a smaller share of the level than this is none."""
TINY = 1e-18
"""Variance that is rounding."""
GONE = 0.1
"""A reward is gone where none of the last steps pays a tenth of what every early one paid. Of
1,000 logs of noise at most 0.4 % do so: 12 rows, each the mean of eight rewards of 0 or 1 of which
one in ten is 1 (`python benchmarks/trend.py --logs 1000`)."""
LAST = 4
"""Steps at either end that say so, at least; at the end a tenth of the run where that is more."""
LOST = 1 / 3
"""Share of what it gained that a reward must lose again to be said to fall."""
SCALE = 10.0
"""Factor between two scales of a reward."""
ALIKE = 2.0
"""How many times the noise counts where rows may be alike: a bend looks so, and so does likeness
that was measured too low."""
PARTS = 6
SURER = 3.0
"""Standard errors beyond which the slope of a half is certain."""
UNSURE = 2.0
"""Standard errors by which the correlation of differences may be off."""
MANY = 60
"""Rows that show how alike neighbours are by their differences alone."""
STIFFEST = 0.99
"""The largest that is reckoned with: what is above it cannot be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How the training reward moved over a run."""

    change: Estimate
    """Last third minus first third of the steps; `n` counts groups of the smaller third."""
    lately: Estimate
    """Last third minus what is between."""
    text: str
    """The same in a sentence."""
    flat: bool | None
    """True: a rise that matters is excluded. False: it moves. None: cannot tell yet."""
    smallest: float
    """The rise that matters."""
    gone: bool
    """The last steps pay next to nothing, however noisy or smoothed the curve is."""
    rose: bool
    fell: bool
    """Its level certainly went up and stayed, or lost much of its gain, where the thirds do not
    show it."""
    more: int | None
    """Steps or rows that would tell, where it cannot be determined yet."""
    constant: bool = False
    """It is one number from first to last, which no noise makes; flat, however few steps say so."""

    @property
    def rises(self) -> bool:
        """Whether it certainly rises, and does not fall again."""
        return (self.change.low > 0 or self.rose) and not self.falls and not self.flat

    @property
    def falls(self) -> bool:
        """Whether it certainly falls, from the start or after a rise."""
        gained = self.change.value - self.lately.value
        lately = self.lately.high < -self.smallest and -self.lately.value >= LOST * gained
        return self.gone or self.fell or self.change.high < 0 or lately

    def to_json(self) -> dict[str, Any]:
        """The stable shape."""
        return {"change": self.change.to_json(), "flat": self.flat, "text": self.text}


@once
def trend_of(trace: Trace) -> Trend | None:
    """The trend of the training reward; None where there is no history to speak of."""
    try:
        values, step = by_unit(trace)
    except NotRecorded:
        return None
    found = thirds(values, step)
    if found is None:
        return None
    smallest = SMALLEST * max(1.0, float(np.ptp(values[np.isfinite(values)])))
    raw = bool(len(trace.rollouts))
    rescaled = None if raw else rescaled_at(trace.steps["reward"], trace.steps["step"])
    if rescaled is None and is_constant(values[np.isfinite(values)]):
        return _never_changes(found, smallest, one_number_in_words(trace))
    rows = 1.0 if raw else rows_in_one(values[np.argsort(step, kind="stable")])
    change = widened(difference_of_means(found.early, found.late, unseen=smallest), rows)
    hardly = change.low > 0 and change.high < HARDLY * min(1.0, abs(found.early.mean()))
    lately = widened(difference_of_means(found.middle, found.late, unseen=smallest), rows)
    steps, by_step = _by_step(values, step)
    told_apart = rows == 1 or len(by_step) >= MANY
    parts = stretches(by_step, noise=1.0 if rows == 1 else ALIKE) if told_apart else []
    unit = "steps" if raw or spacing(step) <= 1 else "rows"
    gone, turned = _gone(by_step, steps, unit), _turned(parts, steps, change)
    more = _more(change, found.steps, smallest) if _open(change, smallest) else None
    told = f"{found.steps} steps" if raw else rows_in_words(found.steps, step)
    units = unit[:-1] if more == 1 else unit
    text = _text(change, smallest, told, f"about {more} more {units} would settle it")
    text += _since(change, lately, smallest, parts, Course(by_step, steps), raw=rows == 1)
    if rescaled is not None:
        before = np.nanmedian(trace.steps["reward"][trace.steps["step"] < rescaled])
        scales = f"{before:.3g} before, {np.nanmedian(values):.3g} since"
        later = f"From there on, {text[0].lower()}{text[1:]}"
        text = f"Since step {rescaled:g} the reward is on another scale ({scales}). {later}"
    if hardly:
        text = f"The training reward hardly rises: from {_ends(found)} over {told}."
    return Trend(
        change=change,
        lately=lately,
        text=gone or turned or text,
        flat=hardly or (False if turned else _flat(change, smallest)),
        smallest=smallest,
        gone=bool(gone),
        rose=bool(turned) and _kept(parts),
        fell=bool(turned) and _lost(parts),
        more=None if turned else more,
    )


def _never_changes(found: "Thirds", smallest: float, text: str) -> Trend:
    still = difference_of_means(found.early, found.early, unseen=smallest)
    return Trend(
        change=still,
        lately=still,
        text=f"The training reward {text}.",
        flat=True,
        smallest=smallest,
        gone=False,
        rose=False,
        fell=False,
        more=None,
        constant=True,
    )


def too_short(trace: Trace) -> str | None:
    """What to say where there are rewards, and too few of them for a trend."""
    try:
        values, step = by_unit(trace)
    except NotRecorded:
        return None
    steps = len(np.unique(step[np.isfinite(values)]))
    if steps >= FEWEST:
        return None
    told = f"{steps} steps with a reward are too few to say whether it moves; {FEWEST} are needed."
    same = steps > 1 and is_constant(values[np.isfinite(values)])
    return f"{told} It {one_number_in_words(trace)}." if same else told


class Thirds(NamedTuple):
    """Known values of the first third of the steps, of the last, and of those between."""

    early: np.ndarray
    middle: np.ndarray
    late: np.ndarray
    steps: int
    """That have any."""


def thirds(values: np.ndarray, step: np.ndarray) -> Thirds | None:
    """Split values, each with its step; None where there is no history to speak of."""
    known = np.isfinite(values)
    values, step = values[known], step[known]
    steps = np.unique(step)
    if len(steps) < FEWEST:
        return None
    third = len(steps) // 3
    early, late = step <= steps[third - 1], step >= steps[-third]
    return Thirds(values[early], values[~early & ~late], values[late], len(steps))


def by_unit(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """One reward per group where rollouts were recorded, else one per step."""
    if len(trace.rollouts):
        groups = trace.groups()
        return groups.known("reward").each(lambda rows: rows.mean(axis=-1)), groups.step
    values, step = trace.steps["reward"], trace.steps["step"]
    at = rescaled_at(values, step)
    return (values, step) if at is None else (np.where(step >= at, values, np.nan), step)


def rescaled_at(values: np.ndarray, step: np.ndarray) -> float | None:
    """The step from which on a log's reward is on another scale: every row before it is `SCALE`
    times smaller than every one after it. Learning leaves rows in between."""
    known = np.isfinite(values)
    order = np.argsort(step[known], kind="stable")
    values, step = values[known][order], step[known][order]
    if len(values) < 2 * FEWEST or not values[0] > 0:
        return None
    most = np.maximum.accumulate(values)[FEWEST - 1 : -FEWEST]
    least = np.minimum.accumulate(values[::-1])[::-1][FEWEST : len(values) - FEWEST + 1]
    jumps = np.flatnonzero(least > SCALE * np.maximum(most, TINY))
    return float(step[FEWEST + jumps[0]]) if len(jumps) else None


def rows_in_one(values: np.ndarray, *, careful: bool = False) -> float:
    """Rows of a log that hold what one independent row would: 1 where the log is raw.

    Rows beside a straight line are alike where the curve is bent, too. The differences of
    neighbours hardly know a bend: those of raw values undo each other (a correlation of -0.5),
    those of a smoothed curve do not. In a short log either may be high by chance, both seldom; who
    is `careful` believes either.
    """
    values = values[np.isfinite(values)]
    time = np.arange(len(values))
    beside = with_next(values - np.polyval(np.polyfit(time, values, 1), time))
    between = alike(values)
    if (max if careful else min)(beside, between) < RAW:
        return 1.0
    # A bend makes rows alike beside a line, and is no smoothing.
    bent = not careful and between <= SMOOTH and len(values) >= MANY
    close = between if bent else min(max(beside, between), alike_at_most(values), STIFFEST)
    return (1 + close) / (1 - close)


def alike_at_most(values: np.ndarray, *, errors: float = UNSURE) -> float:
    """How alike neighbours may be, as far as their differences exclude more: those of a raw curve
    undo each other, however far it goes. In a short log they exclude nothing."""
    return alike(values) + 2 * errors / math.sqrt(len(values))


def with_next(values: np.ndarray) -> float:
    """Correlation of each value with the next; that of raw differences where nothing varies."""
    rest = values - values.mean()
    size = float(rest @ rest)
    return float(rest[:-1] @ rest[1:]) / size if TINY * len(rest) < size < math.inf else -0.5


def widened(change: Estimate, rows: float) -> Estimate:
    """The same change, where so many rows hold what one would."""
    n = change.n / rows
    if rows == 1 or change.n < 2:
        return change
    if n < 2:
        return Estimate(change.value, -math.inf, math.inf, 1)
    free = t_score(2 * (n - 1), LEVEL) / t_score(2 * (change.n - 1), LEVEL)
    half = (change.high - change.low) / 2 * math.sqrt(rows) * free
    return Estimate(change.value, change.value - half, change.value + half, int(n))


def _flat(change: Estimate, smallest: float) -> bool | None:
    if change.low > 0 or change.high < 0:
        return False
    return True if change.high < smallest else None


def _ends(found: Thirds) -> str:
    return f"{found.early.mean():.4g} to {found.late.mean():.4g}"


def _open(change: Estimate, smallest: float) -> bool:
    return _flat(change, smallest) is None and math.isfinite(change.low)


def _by_step(values: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps that have a value, and its mean in each."""
    known = np.isfinite(values)
    steps, which = np.unique(step[known], return_inverse=True)
    return steps, np.bincount(which, values[known]) / np.bincount(which)


def _gone(by_step: np.ndarray, steps: np.ndarray, unit: str) -> str:
    """What to say where the last steps pay next to nothing of what the first third paid."""
    early, last = by_step[: len(by_step) // 3], by_step[-max(LAST, len(by_step) // 10) :]
    if len(early) < LAST or not early.min() > 0 or last.max() > GONE * early.min():
        return ""
    at = int(np.flatnonzero(by_step > GONE * early.min())[-1])
    since, best = by_step[at + 1 :], int(by_step.argmax())
    return (
        f"The training reward falls to nothing: {by_step[: at + 1].mean():.2g} on average up to "
        f"step {steps[at]:g} ({by_step[best]:.2g} at most, step {steps[best]:g}), at most "
        f"{since.max():.2g} in the {len(since)} {unit} since."
    )


def _turned(parts: list[Stretch], steps: np.ndarray, change: Estimate) -> str:
    """What to say of a level that changes otherwise than the thirds show."""
    ups = np.sign(np.diff([part.mean for part in parts]))
    shown = ((ups > 0).all() and change.low > 0) or ((ups < 0).all() and change.high < 0)
    if not len(ups) or shown:
        return ""
    told = ", ".join(f"{part.mean:.3g} up to step {steps[part.last]:g}" for part in parts)
    begins, ends = ("rises" if up > 0 else "falls" for up in (ups[0], ups[-1]))
    if begins != ends:
        less = "" if _lost(parts) or ups[0] < 0 else " a little"
        return f"The training reward {begins}, then {ends}{less}: {told}."
    goes = begins if (ups == ups[0]).all() else "goes up and down"
    return f"The training reward {goes}: {told}."


def _kept(parts: list[Stretch]) -> bool:
    """Whether it ends far above its start, as its own ups and downs go."""
    means = [part.mean for part in parts]
    return means[-1] - means[0] > (1 - LOST) * (max(means) - min(means))


def _lost(parts: list[Stretch]) -> bool:
    """Whether it goes down at last, by much of what it had gained."""
    means = [part.mean for part in parts]
    top = max(means)
    return means[-1] < means[-2] and top - means[-1] >= LOST * (top - means[0])


def _since(
    change: Estimate,
    lately: Estimate,
    smallest: float,
    parts: list[Stretch],
    course: Course,
    *,
    raw: bool,
) -> str:
    """A fall that matters at the end, or a rise that has ended, where the whole run hides it."""
    moved = f"{lately.value:+.3f} [{lately.low:+.3f}, {lately.high:+.3f}]"
    if change.high >= 0 and lately.high < -smallest:
        return f" In its last third it falls by {moved}."
    if not math.isfinite(lately.low) or change.low <= 0 <= change.high:
        return ""
    by_step = course.values
    if raw and _goes_on(by_step):
        return f" It rises as fast in its second half: it has not levelled off{_by_parts(by_step)}."
    if len(parts) > 1 and parts[-1].first <= len(by_step) * 2 // 3:
        return _ends_so(course, float(course.step[parts[-1].first]))
    if change.high < 0 or lately.low > 0:
        return ""
    return f" No further rise shows in its last third ({moved})."


def _ends_so(course: Course, step: float) -> str:
    """The last level, since a step or later, where all rows since then show it; else the turn or
    the early rise that they do."""
    turn = max(course.turns, key=lambda one: one.value, default=None)
    since, early = course.level_from(step), course.most[1]
    if since != step and turn is not None and course.last < turn.value:
        best = f"It is {turn.value:.3g} around step {turn.step:g}, its highest"
        return f" {best}, and {course.last:.3g} at last."
    if since is not None:
        level = float(course.values[course.step >= since].mean())
        return f" Since step {since:g} it is about {level:.3g}."
    return f" Most of that is made by about step {early.step:g}." if early is not None else ""


def _goes_on(by_step: np.ndarray) -> bool:
    """Whether the second half of raw rows certainly rises, and no slower than the whole."""
    whole, _ = slope(by_step)
    late, off = slope(by_step[len(by_step) // 2 :])
    return len(by_step) >= MANY and late - SURER * off > 0 and late >= whole > 0


def _by_parts(by_step: np.ndarray) -> str:
    """The means of its sixths, where each is above the one before."""
    means = [float(part.mean()) for part in np.array_split(by_step, PARTS)]
    told = ", ".join(f"{mean:.3g}" for mean in means)
    return f" (the means of its sixths: {told})" if (np.diff(means) > 0).all() else ""


def _text(change: Estimate, smallest: float, told: str, would: str) -> str:
    if not math.isfinite(change.low):
        return (
            f"{told} do not show whether the training reward moves: each is so close "
            "to the one before that the curve must have been smoothed."
        )
    moved = f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
    if change.low > 0:
        return f"The training reward rises by {moved} over {told}."
    if change.high < 0:
        return f"The training reward falls by {moved} over {told}."
    if change.high < smallest:
        word = "is flat" if change.low > -smallest else "does not rise"
        return f"The training reward {word}: {moved} over {told}."
    return f"{told} are too few to say whether the training reward moves ({moved}); {would}."


def _more(change: Estimate, steps: int, smallest: float) -> int:
    """Steps until the interval excludes no rise or a rise that matters, if the mean stays."""
    half = (change.high - change.low) / 2
    enough = max(change.value, smallest - change.value)
    return max(1, math.ceil(steps * ((half / enough) ** 2 - 1)))
