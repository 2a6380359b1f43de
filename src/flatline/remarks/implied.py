"""Settings that a log does not name and its numbers give away."""

import math
import re
from collections.abc import Iterator

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.column_movement import column, metric
from flatline.hypotheses.logs import setting, spacing
from flatline.hypotheses.part_columns import parts_of
from flatline.remarks.columns import Column
from flatline.remarks.remark import Remark
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

FEWEST = 8
"""Rows that must agree."""
_LONGEST = re.compile(r"(.*/)?(completions?|responses?)(_len(gth)?s?)?[/_]max(_len(gth)?)?")
CLOSE = 0.03
"""How far the loss may be from beta times the KL, as a share of it."""
NEAR = 0.15
"""The same, where it is told as a guess: a mean over completions is not one over tokens."""
ROUNDED = 6e-5
"""Rounding of a loss that is printed with four digits."""
MANY = 0.6
"""Share of the rows in which it must fit."""
TIMES_AT_MOST, NEAR_THE_TOP = 3, 0.9
"""How often the largest value of a column comes exactly, where a limit makes it."""
MOST_COMPLETIONS = 512
"""Completions of a row that are looked for."""
RELATIVE, ABSOLUTE, BY_CHANCE = 2e-6, 2e-3, 1e-6
"""How far from whole a product may be, as printed digits make it, and how seldom chance may make
all of them so, for each number that is tried."""
MANY_SHARES, SEVERAL, MOST_GROUPS = 20, 3, 16
"""Rows of a share of the groups, and values among them, that show how many groups there are."""
NEARLY_ALL = 0.95
"""Share of the broken lengths that must be whole when multiplied."""
OWN = 0.1
"""Share of them that need all of the number: a quarter and more where every row is of as many."""
NARROW = 0.33
"""Spread inside groups, as a share of that between all, where prompts make most of the noise."""
STARTED = 0.1
"""KL per token of a policy that cannot have come there by a first few steps; healthy ones have
1e-5 to 4e-4 after a summed rate of 1e-4."""
SMALL_RATE = 1e-4
"""Sum of learning rates up to then: Adam moves no weight by more."""
STEEPLY = 3.0
"""How far the first KL may be below the usual one."""
AT_CLIP = 0.5
"""Share of the rows in which a norm is exactly its own largest value, where it is clipped."""


def implied(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """Everything that can be read off."""
    about = {
        27: (_away,),
        33: (_clip,),
        57: (_beta,),
        58: (_limit, _completions, _prompts, _groups),
        61: (_moved_on,),
    }
    for order, several in about.items():
        if told := [text for each in several for text in each(trace)]:
            yield Remark(order, " ".join(told))


def _said(trace: Trace, name: str) -> bool:
    try:
        return setting(trace, name) is not None
    except NotRecorded:
        return False


def _beta(trace: Trace) -> Iterator[str]:
    """On-policy the policy term averages to 0, so that the loss is beta times the KL."""
    loss, kl = column(trace, "loss"), column(trace, "kl")
    if not len(loss) or not len(kl):
        return
    known = np.isfinite(loss) & np.isfinite(kl) & (kl > 0)
    loss, kl = loss[known], kl[known]
    rounding = 0.0 if _has_more_digits(loss) else ROUNDED
    for least in (10 * ROUNDED, 0.0):
        told = np.abs(loss) > least
        beta = float(np.median(loss[told] / kl[told])) if told.sum() >= FEWEST else 0.0
        apart = np.abs(loss - beta * kl) - rounding
        exact, near = (apart <= share * abs(beta) * kl for share in (CLOSE, NEAR))
        if beta > 0 and exact.mean() >= MANY and exact[told].sum() >= FEWEST:
            yield (
                f"The loss is {beta:.2g} times the KL in {exact.sum()} of {len(exact)} rows: beta "
                f"is {beta:.2g}, and beside the penalty the loss averages to 0, as it does "
                "on-policy."
            )
            return
        if beta > 0 and near.mean() >= MANY and near[told].sum() >= FEWEST:
            about = f"{float(f'{beta:.1g}'):g}"
            yield f"The loss is about {about} times the KL, so beta will be about {about}."
            return


def _has_more_digits(loss: np.ndarray) -> bool:
    return not np.allclose(loss, np.round(loss, 4), atol=1e-9)


def _limit(trace: Trace) -> Iterator[str]:
    cut = column(trace, "truncated_share")
    longest = [metric(trace, n) for n in trace.metric_names if _LONGEST.fullmatch(plain(n))]
    for values in (*longest, column(trace, "completion_length")):
        known = values[np.isfinite(values)]
        top = float(known.max()) if len(known) else 0.0
        times = int((known == top).sum())
        stands = len(known) and times == len(known) and not np.nansum(cut)
        below = int(((known < top) & (known >= NEAR_THE_TOP * top)).sum())
        by_chance = (known == np.round(known)).all() and times <= below  # whole numbers meet often
        heaped = times >= TIMES_AT_MOST and not by_chance
        if heaped and top == round(top) and top > 1 and not stands:
            if len(cut) and not np.nansum(cut):
                return  # nothing is cut off: a favourite length is no limit
            yield f"The limit is {top:g} tokens: {times} rows have exactly that, and none has more."
            return


def _groups(trace: Trace) -> Iterator[str]:
    """A share of the groups moves in parts of how many there are."""
    share, one_step = column(trace, "zero_std_share"), spacing(trace.steps["step"]) <= 1
    known = share[np.isfinite(share)]
    if len(known) < MANY_SHARES or len(np.unique(known)) < SEVERAL or not one_step:
        return
    for count in range(2, MOST_GROUPS + 1):
        if np.abs(known * count - np.round(known * count)).max() <= ABSOLUTE:
            told = f"a row rests on {count} groups"
            if count != 10:  # so many digits were printed
                yield f"The share of groups with equal rewards moves in steps of 1/{count}: {told}."
            return


def _completions(trace: Trace) -> Iterator[str]:
    """Lengths are whole numbers, so that their mean says how many it is of."""
    length = column(trace, "completion_length")
    known = length[np.isfinite(length)]
    if len(known) < FEWEST or _said(trace, "num_generations"):
        return
    # TRL logs means of all steps since the last row; others may log one step and leave some out.
    every = spacing(trace.steps["step"]) if trace.run.get("source") == "import:trl" else 1.0
    broken = known[np.abs(known - np.round(known)) > 1e-3]
    if len(np.unique(broken)) < FEWEST:
        return
    for count in range(2, MOST_COMPLETIONS + 1):
        whole = _whole(broken, count)
        if whole.mean() >= NEARLY_ALL and _no_chance(broken, whole, count):
            if count in (10, 100) or _own(broken, count).mean() < OWN:
                return  # so many digits were printed, or rows are means of different numbers
            a_step = f" ({count / every:g} a step)" if every > 1 and count % every == 0 else ""
            told = f"a row is the mean of {count} completions{a_step}"
            yield f"Lengths are multiples of 1/{count}: {told}."
            return


def _whole(values: np.ndarray, count: int) -> np.ndarray:
    times = values * count
    return np.asarray(np.isclose(times, np.round(times), rtol=RELATIVE, atol=ABSOLUTE))


def _no_chance(values: np.ndarray, whole: np.ndarray, count: int) -> bool:
    """Whether any numbers of this size would hardly all be that close to a whole one."""
    close = np.minimum(2 * (RELATIVE * values[whole] * count + ABSOLUTE), 1.0)
    missed = math.comb(len(whole), int((~whole).sum()))
    return float(np.log(close).sum()) + math.log(missed) < math.log(BY_CHANCE)


def _own(values: np.ndarray, count: int) -> np.ndarray:
    """Which are whole only when multiplied by all of it, and by no part of it."""
    parts = [part for part in range(1, count) if count % part == 0]
    return np.asarray(~np.any([_whole(values, part) for part in parts], axis=0))


def _prompts(trace: Trace) -> Iterator[str]:
    """With one reward function, its own spread is over the batch."""
    found = parts_of(trace)
    names = [name for name in trace.metric_names if name.endswith("/std") and "rewards/" in name]
    if found is None or len(found.columns) != 1 or len(names) != 1 or names[0].startswith("eval"):
        return
    inside, between = metric(trace, "reward_std"), trace.metric(names[0])
    if len(inside) and np.nanmedian(inside) < NARROW * np.nanmedian(between):
        yield (
            f"Rewards differ by {np.nanmedian(inside):.2g} inside groups and by "
            f"{np.nanmedian(between):.2g} over all: most of the noise is which prompts a row has."
        )


def _clip(trace: Trace) -> Iterator[str]:
    norm = column(trace, "grad_norm")
    known = norm[np.isfinite(norm)]
    if len(known) < FEWEST:
        return
    top = float(known.max())
    at = np.isclose(known, top, rtol=1e-4)
    if top > 0 and at.mean() >= AT_CLIP:
        yield (
            f"The gradient norm is exactly {top:.3g} in {at.sum()} of {len(known)} rows: it is "
            "clipped there."
        )
    limit = metric(trace, "max_grad_norm")
    limit = limit[np.isfinite(limit)]
    if len(limit) and np.ptp(limit) == 0 and (known > limit[0]).mean() >= NEARLY_ALL:
        above = int((known > limit[0]).sum())
        yield (
            f"The gradient norm is above {limit[0]:.3g}, at which it is clipped, in {above} of "
            f"{len(known)} rows."
        )


def _moved_on(trace: Trace) -> Iterator[str]:
    """A ratio is clipped only where the policy is no longer the one that sampled."""
    share = column(trace, "clip_share")
    known = share[np.isfinite(share)]
    if len(known) >= FEWEST and (known > 0).mean() > MANY:
        yield (
            f"{known.mean():.2g} of the tokens are clipped on average: batches are used more than "
            "once, or by a policy that has moved on."
        )


def _away(trace: Trace) -> Iterator[str]:
    """A KL that no update can have made."""
    kl, rate, step = column(trace, "kl"), column(trace, "learning_rate"), trace.steps["step"]
    at = np.flatnonzero(np.isfinite(kl))
    if not len(at) or not len(rate) or not np.isfinite(rate[: at[0] + 1]).any():
        return
    first = kl[at[0]]
    so_far = float(np.nanmax(rate[: at[0] + 1])) * max(spacing(step), float(step[at[0]]))
    if first >= STARTED and so_far <= SMALL_RATE and first >= np.median(kl[at]) / STEEPLY:
        yield (
            f"The KL is {first:.2g} at step {step[at[0]]:g}, at summed rates of {so_far:.1g}: the "
            "policy did not start at its reference."
        )
