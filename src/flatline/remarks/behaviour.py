"""What the policy did, as a log shows it: how it writes, how far it is from its reference."""

from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import change_of, column, ends, metric, surely
from flatline.hypotheses.logs import spacing
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
STILL, KNOWN = 0.15, 0.25
"""Relative change that is none, and how well it must be known."""
FEWEST = 20
"""Rows that show that nothing moves."""
FEW = 6
"""What they must be worth, a third of them, where neighbours are alike."""
CUT = 0.2
"""Share of completions cut off, from which on a limit decides how long they are."""
NOTHING = 1e-6
"""A spread of rewards below it is rounding."""
MOSTLY = 0.5
"""Share of rows without a gradient that is told."""
DEAD = 0.1
"""Share of rows without any difference of rewards that is told."""


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
    yield from _not_updated(column(trace, "grad_norm"))
    kl = column(trace, "kl")
    if surely(change_of(kl, step)) > 0:
        yield from _went("The KL goes", kl, step, STEEPLY, " nat per token")
    yield from _away(trace, kl)
    yield from _back(kl, step)
    yield from _still(trace, spread, step)


def _went(
    what: str, values: np.ndarray, step: np.ndarray, times: float, unit: str
) -> Iterator[str]:
    """Told as medians and asked of logarithms: a spike is no change."""
    values = np.where(values > NOTHING, values, np.nan) if len(values) else values
    found = thirds(values, step) if len(values) else None
    if found is None or not surely(change_of(np.log(values), step)):
        return
    before, after = float(np.median(found.early)), float(np.median(found.late))
    if not before / times < after < before * times:
        yield f"{what} from {_short(before)} to {_short(after)}{unit}."


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


def _not_updated(norm: np.ndarray) -> Iterator[str]:
    known = norm[np.isfinite(norm)]
    none = int((known == 0).sum())
    if len(known) and none >= MOSTLY * len(known):
        rows = f"in all {none} rows" if none == len(known) else f"in {none} of {len(known)} rows"
        yield f"The gradient norm is 0 {rows}: nothing is learnt from there."


def _growing(share: np.ndarray, step: np.ndarray) -> Iterator[str]:
    if surely(change_of(share, step)) > 0:
        before, after = ends(share, step)
        yield f"Groups whose rewards are all equal go from {before:.0%} to {after:.0%}."


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
    stand = [what for what, values in known.items() if _stands(values, step)]
    if not stand:
        return
    several = f"{', '.join(stand[:-1])} and {stand[-1]} do not change"
    listed = several if stand[1:] else f"{stand[0]} does not change"
    if len(known) >= 2 and stand == list(known) and _differ(trace, spread):
        yield f"The policy hardly moves: {listed}, although rewards differ."
    elif "length" in stand:
        yield f"{listed[0].upper()}{listed[1:]}."


def _differ(trace: Trace, spread: np.ndarray) -> bool:
    """Whether rewards differ, inside groups where the log says so."""
    dead = column(trace, "zero_std_share")
    if np.isfinite(dead).any():
        return bool(np.nanmedian(dead) < 1)
    return bool(np.isfinite(spread).any() and np.nanmedian(spread) > NOTHING)


def _stands(values: np.ndarray, step: np.ndarray) -> bool:
    change = change_of(values, step)
    if change is None or not np.nanmax(values) > np.nanmin(values):
        return change is not None
    if surely(change) or change.n < FEW:
        return False
    before, _ = ends(values, step)
    half = (change.high - change.low) / 2
    return abs(change.value) <= STILL * abs(before) and half <= KNOWN * abs(before)
