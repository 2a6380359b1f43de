"""What every row of a watched loop weighs in its loss, beside what it earned.

`flatline.watch` reads the weight of each token from the gradient at the logits, so it is known
whatever the loss is called. Any baseline makes the weight of a row a straight line of its reward
among the rows of its prompt: that of the group, of the batch, a running one, one for each prompt.
Two mistakes in the shape of a tensor do not, and both are seen by arithmetic alone: a baseline over
rows that are laid out otherwise, and one weight for all of them.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.groups import EQUAL
from flatline.live.stage_found import StageFound
from flatline.trace import Trace
from flatline.trace.memo import once

MOST_STEPS = 50
"""Steps whose tokens are read, evenly over the run."""
FEWEST_STEPS = 3
"""Steps that must show it."""
NEARLY_ALL = 0.9
"""Share of the steps that must show it, and of the rows that must have a weight: who trains on the
best rows alone gives these one weight on purpose."""
ALIKE = 1e-3
"""Share by which equal weights may differ: they are computed in float32 and divided by 1 - p."""
ROUNDING = 1e-5
"""Share of the weight that its reward would give a row, below which only rounding is left of it: a
sum of 48 advantages that cancel leaves 1e-7."""
RELATED = 0.5
"""Correlation with the rewards inside groups, mean over steps, that rounding does not have."""
FITS = 5e-3
"""Share of the weights that another grouping may leave over. The right one leaves 1e-4."""
OFF = 0.1
"""Share that a baseline of each prompt must leave over. Healthy: 1e-4."""
FEWEST_ROWS = 3
"""Rows of a group: two weights that add up to 0 fit every baseline."""
SHOWN = 8
"""Numbers of an example that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """The rows of one step, in the order in which they are trained."""

    step: int
    reward: np.ndarray
    group: np.ndarray
    """Which prompt each is of, numbered in the order of appearance."""
    weight: np.ndarray
    """Of a typical token; NaN where it is not known."""
    tokens: np.ndarray
    """How many carry a loss."""

    @property
    def forms(self) -> tuple[np.ndarray, np.ndarray]:
        """What may be the advantage but for a factor: a loss may divide by the length of a row."""
        return self.weight, self.weight * self.tokens


def of_watched_rows(trace: Trace) -> StageFound | None:
    """What the weights of rows show of the advantages; None where that is no mistake."""
    known = trace.run.get("source") == "watch" and "reward" in trace.rollouts
    if not known or not len(trace.token_steps):
        return None
    with suppress(NotRecorded):
        return _one_for_all(trace) or _of_other_rows(trace)
    return None


# -- one weight for all


def _one_for_all(trace: Trace) -> StageFound | None:
    """Rewards differ, and every row has the same weight."""
    told = [one for one in weighed(trace) if _tells(one)]
    noise = [one for one in told if _is_tiny(one)]
    if len(told) < FEWEST_STEPS or not all(_is_tiny(one) or _is_alike(one) for one in told):
        return None
    if _follow(noise) if noise else _constant(told):
        return None
    first = (noise or told)[0]
    return StageFound(
        stage="advantages",
        departs=True,
        text=f"At all {len(told)} steps in which rewards differ inside groups, every completion "
        f"has the same weight in the loss, whatever it earned{_next_to_nothing(noise)}.",
        examples=(
            f"step {first.step}: rewards {_numbers(first.reward)}, weights of a token "
            f"{_numbers(first.weight)}",
        ),
        direct=True,
        expected="weights that follow the rewards",
        fix="Print the shapes of advantages and log-probs where they are multiplied. (N, 1) times "
        "(N,) is a table of (N, N), which gives every row the mean of all advantages.",
    )


def _tells(one: Weighed) -> bool:
    """Whether rewards differ among rows that are compared, and nearly all of these are trained."""
    rows = _compared(one)
    return bool(rows.any()) and float(np.isfinite(one.weight[rows]).mean()) >= NEARLY_ALL


def _compared(one: Weighed) -> np.ndarray:
    """Rows of groups whose rewards differ."""
    group = _groups(one)
    highest, lowest = np.full(group.max() + 1, -np.inf), np.full(group.max() + 1, np.inf)
    np.maximum.at(highest, group, one.reward)
    np.minimum.at(lowest, group, one.reward)
    return np.asarray((highest - lowest > EQUAL)[group])


def _groups(one: Weighed) -> np.ndarray:
    """All rows are one group where every prompt has one row."""
    alone = int(one.group.max()) + 1 == len(one.group)
    return np.zeros_like(one.group) if alone else one.group


def _is_alike(one: Weighed) -> bool:
    rows = _compared(one) & np.isfinite(one.weight)
    return any(np.ptp(form[rows]) < ALIKE * np.abs(form[rows]).max() for form in one.forms)


def _is_tiny(one: Weighed) -> bool:
    """Whether weights may be what rounding leaves of advantages that cancel."""
    return float(np.nanmax(np.abs(one.weight[_compared(one)]))) < ROUNDING * _due(one)


def _follow(tiny: list[Weighed]) -> bool:
    """Whether tiny weights follow the rewards all the same: the loss is divided by much."""
    return abs(float(np.mean([_related(one) for one in tiny]))) > RELATED


def _related(one: Weighed) -> float:
    """Correlation of weights and rewards inside groups."""
    rows = _compared(one) & np.isfinite(one.weight)
    group = _groups(one)[rows]
    reward, weight = _centred(one.reward[rows], group), _centred(one.weight[rows], group)
    both = float(np.linalg.norm(reward) * np.linalg.norm(weight))
    return float(reward @ weight) / both if both else 0.0


def _due(one: Weighed) -> float:
    """About what a token would weigh: the spread of the rewards over all tokens."""
    spread = float(np.std(one.reward[_compared(one)]))
    return min(spread, 1.0) / max(float(np.nansum(one.tokens)), 1.0)


def _next_to_nothing(noise: list[Weighed]) -> str:
    if not noise:
        return ""
    most = max(float(np.nanmax(np.abs(one.weight))) for one in noise)
    return f": next to nothing, {most:.0e} a token at most, where about {_due(noise[0]):.0e} is due"


def _constant(told: list[Weighed]) -> bool:
    """Whether it is also the same at every step: a loop that imitates all of its samples."""
    means = np.array([[np.nanmean(form) for form in one.forms] for one in told])
    rows = np.array([[len(one.reward), np.nansum(one.tokens)] for one in told])
    every = np.hstack([means, means * rows[:, :1], means * rows[:, 1:]])
    return bool((np.ptp(every, axis=0) < ALIKE * np.abs(every).max(axis=0)).any())


# -- the baseline of other rows


def _of_other_rows(trace: Trace) -> StageFound | None:
    """Weights are rewards less the mean of rows that are not of one prompt."""
    looked = [(one, found) for one in weighed(trace) if (found := _other(one)) is not None]
    fitting = [(one, name) for one, (name, left) in looked if left < FITS]
    names = {name for _, name in fitting}
    enough = max(FEWEST_STEPS, NEARLY_ALL * len(looked))
    if len(names) != 1 or len(fitting) < enough:
        return None
    one = fitting[0][0]
    return StageFound(
        stage="advantages",
        departs=True,
        text=f"At {len(fitting)} of {len(looked)} steps each row's weight in the loss is its "
        f"reward minus the mean of {names.pop()}, which belong to other prompts, to {FITS:.1%}. "
        "No baseline of its own prompt fits.",
        measured=len(fitting) / len(looked),
        examples=(
            f"step {one.step}: prompts {one.group[:SHOWN].tolist()}..., rewards "
            f"{_numbers(one.reward)}, weights of a token {_numbers(one.weight)}",
        ),
        direct=True,
        expected="the mean of the row's own prompt",
        fix=_how_to_view(one),
    )


def _other(one: Weighed) -> tuple[str, float] | None:
    """The other grouping that fits best, and what it leaves over; None where nothing is told."""
    known = np.isfinite(one.weight)
    others = _other_groupings(one.group)
    if not others or known.mean() < 0.5 or not np.isfinite(one.reward).all():
        return None
    if min(_left(form, one.reward, one.group, baseline=True) for form in one.forms) < OFF:
        return None
    left = {
        name: min(_left(form, one.reward, group, baseline=False) for form in one.forms)
        for name, group in others.items()
    }
    name = min(left, key=lambda each: left[each])
    return name, left[name]


def _other_groupings(group: np.ndarray) -> dict[str, np.ndarray]:
    """How rewards are grouped by mistake where rows of a prompt are neighbours, or are not."""
    at, prompts = np.arange(len(group)), int(group.max()) + 1
    size = len(group) // prompts
    if prompts < 2 or size < 2 or len(group) != prompts * size:
        return {}
    if np.array_equal(group, at // size):
        found = {f"rows that stand {each} apart": at % each for each in {prompts, size}}
    elif np.array_equal(group, at % prompts) and prompts != size:
        found = {f"{size} neighbours": at // size}
    else:
        return {}
    return {name: one for name, one in found.items() if np.bincount(one).min() >= FEWEST_ROWS}


def _how_to_view(one: Weighed) -> str:
    size = len(one.group) // (int(one.group.max()) + 1)
    if one.group[0] == one.group[1]:
        return (
            "Rows of one prompt are neighbours here (`repeat_interleave`): view the rewards as "
            f"`(-1, {size})` and take mean and spread over dimension 1."
        )
    return (
        "Rows of one prompt do not stand together here (`repeat`): view the rewards as "
        f"`({size}, -1)` and take mean and spread over dimension 0."
    )


def _left(weight: np.ndarray, reward: np.ndarray, group: np.ndarray, *, baseline: bool) -> float:
    """Share of the weights that is left over beside a line through each group: with a baseline of
    its own, or with the mean of all its rewards."""
    off = _centred(reward, group)
    known = np.isfinite(weight)
    weight, group, off = weight[known], group[known], off[known]
    whole = float(np.sum(weight**2))
    if baseline:
        weight, off = _centred(weight, group), _centred(off, group)
    squares = np.bincount(group, off**2)
    slope = np.bincount(group, weight * off) / np.where(squares > EQUAL**2, squares, np.inf)
    return float(np.sqrt(np.sum((weight - slope[group] * off) ** 2) / max(whole, 1e-300)))


def _centred(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    count = np.maximum(np.bincount(group), 1)
    return np.asarray(values - (np.bincount(group, values) / count)[group])


# -- reading


@once
def weighed(trace: Trace) -> list[Weighed]:
    """Steps whose rows were sampled by the watched model and given a reward."""
    steps = trace.token_steps
    some = np.unique(np.linspace(0, len(steps) - 1, MOST_STEPS).astype(int))
    tokens, table = trace.tokens(steps[some].tolist()), trace.rollouts
    weight, count = np.full(len(table), np.nan), np.full(len(table), np.nan)
    weight[tokens.rollout_rows], count[tokens.rollout_rows] = _typical(
        tokens.weight, tokens.row, len(tokens.rollout_rows)
    )
    rows = np.flatnonzero(np.isin(table["step"], steps[some]) & np.isfinite(table["reward"]))
    rows = rows[np.lexsort((table["rollout"][rows], table["step"][rows]))]
    ends = np.flatnonzero(np.diff(table["step"][rows])) + 1
    return [
        Weighed(
            step=int(table["step"][here[0]]),
            reward=table["reward"][here],
            group=_by_appearance(trace.groups().index[here]),
            weight=weight[here],
            tokens=count[here],
        )
        for begin, end in pairwise([0, *ends.tolist(), len(rows)])
        if len(here := rows[begin:end]) > 1
    ]


def _typical(weight: np.ndarray, row: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The median over the tokens of each row that have a weight, and how many these are."""
    used = np.flatnonzero(np.isfinite(weight) & (weight != 0))
    order = used[np.lexsort((weight[used], row[used]))]
    count = np.bincount(row[used], minlength=rows)
    middle = np.minimum(np.cumsum(count) - count + count // 2, max(len(order) - 1, 0))
    found = np.full(rows, np.nan)
    some = count > 0
    found[some] = weight[order[middle[some]]]
    return found, np.where(some, count, np.nan)


def _by_appearance(group: np.ndarray) -> np.ndarray:
    _, first, index = np.unique(group, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[index])


def _numbers(values: np.ndarray) -> str:
    shown = ", ".join(f"{value:.3g}" for value in values[:SHOWN])
    return f"[{shown}{', ...' if len(values) > SHOWN else ''}]"
