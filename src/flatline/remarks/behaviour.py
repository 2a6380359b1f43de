"""What the policy did, as a log shows it: how it writes, how far it is from its reference."""

import re
from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import (
    STILL,
    change_of,
    column,
    ends,
    metric,
    stands,
    surely,
)
from flatline.hypotheses.logs import not_numbers, spacing
from flatline.hypotheses.trend import thirds
from flatline.trace import Trace

TIMES = 1.5
"""Factor by which a length, an entropy or a spread changes, to be told."""
STEEPLY = 3.0
"""The same of a gradient norm, which goes up and down more."""
BACK = 0.95
"""Share of its first KL that a policy has left when it goes back."""
AWAY = 0.05
"""KL per token that is more than noise; see H03."""
STARTED = 0.1
"""KL per token of a policy that cannot have come there by a first few steps; healthy ones have
1e-5 to 4e-4 after a summed rate of 1e-4."""
SMALL_RATE = 1e-4
"""Sum of learning rates up to then: Adam moves no weight by more."""
FEWEST = 20
"""Rows that show that nothing moves."""
CUT = 0.2
"""Share of completions cut off, from which on a limit decides how long they are."""
NOTHING = 1e-6
"""A spread of rewards below it is rounding."""
MOSTLY = 0.5
"""Share of rows without a gradient that is told."""
DEAD = 0.1
"""Share of rows without any difference of rewards that is told."""
LAST = 5
"""Rows at the end that must agree, at least."""
ROWS = 10
"""Rows whose mean is worth telling."""
SHOWN = 8
"""Steps that are listed."""
FAR = 1.0
"""KL per token of a policy that has left its reference; see H03."""
FEW_SHARES = 3
_NO_SHARE = re.compile(
    r"rewards/|^(train/)?(perf|timing|time|system)|loss|norm|std|/lr$|coef|epoch"
)
"""Parts of the reward are told elsewhere; what is small is not always a share."""
OF_LENGTH = 0.9
"""Correlation of reward and length, of rows and of their differences, to be told. Longer answers
may be better ones; a reward that hardly does anything else is about length."""


def behaviour(trace: Trace) -> Iterator[str]:
    """What changed in it, and what did not."""
    step = trace.steps["step"]
    told = (
        ("Completions go", "completion_length", TIMES, " tokens on average"),
        ("The entropy goes", "entropy", TIMES, " nat per token"),
        ("The gradient norm goes", "grad_norm", STEEPLY, ""),
    )
    for what, name, times, unit in told:
        yield from _went(what, column(trace, name), step, times, unit)
    spread = metric(trace, "reward_std")
    yield from _went("The spread of the rewards goes", spread, step, TIMES, "")
    yield from _dead(spread, step)
    yield from _growing(column(trace, "zero_std_share"), step)
    yield from _cut(column(trace, "truncated_share"), step)
    yield from _not_updated(column(trace, "grad_norm"), step)
    yield from _no_numbers(trace)
    yield from _shares(trace, step)
    yield from _one_value(trace)
    yield from _by_length(trace)
    kl = column(trace, "kl")
    exploding = list(_exploding(kl, step))
    yield from exploding
    if not exploding and surely(change_of(_logarithm(kl), step)) > 0:
        yield from _went("The KL goes", kl, step, STEEPLY, " nat per token")
    yield from _away(trace, kl)
    yield from _back(kl, step)
    yield from _still(trace, spread, step)


def _went(
    what: str, values: np.ndarray, step: np.ndarray, times: float, unit: str
) -> Iterator[str]:
    """Told as medians and asked of logarithms: a spike is no change."""
    values = np.where(values > NOTHING, values, np.nan)
    found = thirds(values, step) if len(values) else None
    if found is None or not surely(change_of(_logarithm(values), step)):
        return
    before, after = float(np.median(found.early)), float(np.median(found.late))
    if not before / times < after < before * times:
        yield f"{what} from {_short(before)} to {_short(after)}{unit}."


def _logarithm(values: np.ndarray) -> np.ndarray:
    return np.log(np.where(values > NOTHING, values, np.nan))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _dead(spread: np.ndarray, step: np.ndarray) -> Iterator[str]:
    known = np.isfinite(spread)
    dead = (spread[known] < NOTHING).astype(float)
    if not len(dead) or dead.mean() < DEAD:
        return
    grows = surely(change_of(dead, step[known])) > 0
    before, after = ends(dead, step[known]) if grows else (0.0, 0.0)
    told = f", from {before:.0%} in the first third to {after:.0%} in the last" if grows else ""
    yield (
        f"In {dead.sum():.0f} of {len(dead)} rows all rewards are equal{told}: these teach nothing."
    )


def _not_updated(norm: np.ndarray, step: np.ndarray) -> Iterator[str]:
    known = np.isfinite(norm)
    none, rows = norm[known] == 0, int(known.sum())
    since = _ending(none)
    if not none.any():
        return
    if none.all() or none.mean() >= MOSTLY:
        where = f"in all {rows} rows" if none.all() else f"in {none.sum()} of {rows} rows"
        yield f"The gradient norm is 0 {where}: nothing is learnt from there."
    elif since >= max(LAST, DEAD * rows):
        first = step[known][-since]
        yield f"The gradient norm is 0 in all {since} rows since step {first:g}: nothing is learnt."


def _one_value(trace: Trace) -> Iterator[str]:
    """A reward that differed from row to row, and is one number from some row on."""
    reward, step = column(trace, "reward"), trace.steps["step"]
    known = np.isfinite(reward)
    reward, step = reward[known], step[known]
    since = _ending(reward == reward[-1]) if len(reward) else 0
    before = reward[: len(reward) - since]
    if since < max(LAST, DEAD * len(reward)) or len(np.unique(before)) < LAST:
        return
    told = f"The reward is {reward[-1]:.3g} in all {since} rows since step {step[-since]:g}"
    length = column(trace, "completion_length")
    length = length[known] if len(length) else np.full(len(reward), np.nan)
    early, late = (np.nanmedian(part) for part in (length[:-since], length[-since:]))
    same = abs(late - early) <= STILL * early
    yield f"{told}{', and completions are as long as before' if same else ''}."


def _ending(yes: np.ndarray) -> int:
    """How many of the last ones, without a gap."""
    return int(np.argmin(yes[::-1])) if not yes.all() else len(yes)


def _by_length(trace: Trace) -> Iterator[str]:
    """A reward that is the length of what was written, whatever its parts are called."""
    reward, length = column(trace, "reward"), column(trace, "completion_length")
    if not len(reward) or not len(length):
        return
    known = np.isfinite(reward) & np.isfinite(length)
    reward, length = reward[known], length[known]
    if len(reward) < FEWEST or not np.ptp(reward) > 0 or not np.ptp(length) > 0:
        return
    both = (np.corrcoef(reward, length)[0, 1], np.corrcoef(np.diff(reward), np.diff(length))[0, 1])
    if min(both) >= OF_LENGTH or max(both) <= -OF_LENGTH:
        goes = "higher" if both[0] > 0 else "lower"
        yield (
            f"From row to row the reward follows the length of completions (r = {both[0]:.2f}): "
            f"{goes} where they are longer."
        )


def _growing(share: np.ndarray, step: np.ndarray) -> Iterator[str]:
    moved = surely(change_of(share, step))
    if moved > 0:
        before, after = ends(share, step)
        yield f"Groups whose rewards are all equal go from {before:.0%} to {after:.0%}."
    elif not moved and np.isfinite(share).sum() >= ROWS and DEAD <= np.nanmean(share) < MOSTLY:
        yield f"In {np.nanmean(share):.0%} of the groups all rewards are equal."


def _cut(share: np.ndarray, step: np.ndarray) -> Iterator[str]:
    """Completions at their limit: none, or more and more."""
    known = np.isfinite(share)
    if known.sum() < ROWS:
        return
    if not share[known].any():
        yield "No completion is cut off."
    elif surely(change_of(share, step)) > 0 and np.nanmean(share) < CUT:
        before, after = ends(share, step)
        yield f"Completions that are cut off go from {before:.0%} to {after:.0%}."


def _no_numbers(trace: Trace) -> Iterator[str]:
    """Rows whose loss or gradient is NaN or infinite; a row that lacks them is none."""
    for what, name in (("loss", "loss"), ("gradient norm", "grad_norm")):
        if name not in trace.steps:
            continue
        bad = not_numbers(trace.steps, name)
        if bad.any():
            where = trace.steps["step"][bad]
            shown = ", ".join(f"{at:g}" for at in where[:SHOWN]) + (" ..." * (len(where) > SHOWN))
            rows = f"{bad.sum()} of {len(bad)} rows"
            own = (trace.run.get("aliases") or {}).values()
            alike = [f"`{n}`" for n in trace.metric_names if n not in own and _gone(trace, n, bad)]
            also = f", and {' and '.join(alike)} with it" if 0 < len(alike) <= 2 else ""
            yield f"The {what} is no number in {rows} (steps {shown}){also}."


def _gone(trace: Trace, name: str, rows: np.ndarray) -> bool:
    """Whether a column has a number in all other rows, and in none of these."""
    return bool((np.isnan(metric(trace, name)) == rows).all())


def _shares(trace: Trace, step: np.ndarray) -> Iterator[str]:
    """Shares that the trainer logs for itself and that surely move, largest change first."""
    left_out = {*(trace.run.get("aliases") or {}).values(), *(trace.run.get("unrecognised") or ())}
    moved: list[tuple[float, str]] = []
    for name in trace.metric_names:
        values = metric(trace, name)
        known = values[np.isfinite(values)]
        share = len(known) >= FEWEST and known.min() >= 0 and known.max() <= 1
        if name in left_out or not share or _NO_SHARE.search(name) or (np.diff(known) > 0).all():
            continue
        before, after = ends(values, step)
        if surely(change_of(values, step)) and abs(after - before) >= DEAD:
            word = "rises" if after > before else "falls"
            moved.append(
                (abs(after - before), f"`{name}` {word} from {before:.2g} to {after:.2g}.")
            )
    yield from (text for _, text in sorted(moved, reverse=True)[:FEW_SHARES])


def _exploding(kl: np.ndarray, step: np.ndarray) -> Iterator[str]:
    """A KL that is out of bounds in some rows, where it began near the reference."""
    known = np.isfinite(kl)
    kl, step = kl[known], step[known]
    far = np.flatnonzero(kl > FAR)
    if len(kl) < FEWEST or len(far) < LAST or far[0] < LAST:
        return
    at, late = int(kl.argmax()), float(np.median(kl[-(len(kl) // 3) :]))
    yield (
        f"The KL is above {FAR:g} in {len(far)} of the {len(kl) - far[0]} rows since step "
        f"{step[far[0]]:g}, and {_short(kl[at])} at most (step {step[at]:g}); before, "
        f"{kl[: far[0]].max():.2g} at most. The median of the last third is {_short(late)}."
    )


def _away(trace: Trace, kl: np.ndarray) -> Iterator[str]:
    """A KL that no update can have made."""
    rate, step = column(trace, "learning_rate"), trace.steps["step"]
    at = np.flatnonzero(np.isfinite(kl))
    if not len(at) or not len(rate) or not np.isfinite(rate[: at[0] + 1]).any():
        return
    first = kl[at[0]]
    so_far = float(np.nanmax(rate[: at[0] + 1])) * max(spacing(step), float(step[at[0]]))
    if first >= STARTED and so_far <= SMALL_RATE and first >= np.median(kl[at]) / STEEPLY:
        yield (
            f"The KL is {first:.2g} at step {step[at[0]]:g} already, when the learning rates add "
            f"up to {so_far:.1g} at most: the policy did not start at its reference."
        )


def _back(kl: np.ndarray, step: np.ndarray) -> Iterator[str]:
    if surely(change_of(kl, step)) < 0:
        before, after = ends(kl, step)
        if before >= AWAY and after < BACK * before:
            yield f"The KL falls from {before:.2g} to {after:.2g}: back towards the reference."


def _still(trace: Trace, spread: np.ndarray, step: np.ndarray) -> Iterator[str]:
    """A policy that could learn, since rewards differ, and does nothing else than before."""
    names = {"KL": "kl", "entropy": "entropy", "length": "completion_length"}
    known = {what: column(trace, name) for what, name in names.items()}
    known = {what: v for what, v in known.items() if np.isfinite(v).sum() >= FEWEST}
    cut = column(trace, "truncated_share")
    if np.isfinite(cut).any() and np.nanmean(cut) > CUT:
        known.pop("length", None)
    stand = [what for what, values in known.items() if _unmoved(values, step)]
    if not stand:
        return
    several = f"{', '.join(stand[:-1])} and {stand[-1]} do not change"
    listed = several if stand[1:] else f"{stand[0]} does not change"
    if len(known) >= 2 and stand == list(known) and _differ(trace, spread):
        yield f"The policy hardly moves: {listed}, although rewards differ."
    elif "length" in stand:
        yield f"{listed[0].upper()}{listed[1:]}."


def _unmoved(values: np.ndarray, step: np.ndarray) -> bool:
    """Neither as it is nor as a logarithm, by which movements are told above."""
    return stands(values, step) and not surely(change_of(_logarithm(values), step))


def _differ(trace: Trace, spread: np.ndarray) -> bool:
    """Whether rewards differ, inside groups where the log says so."""
    dead = column(trace, "zero_std_share")
    if np.isfinite(dead).any():
        return bool(np.nanmedian(dead) < 1)
    return bool(np.isfinite(spread).any() and np.nanmedian(spread) > NOTHING)
