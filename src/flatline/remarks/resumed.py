"""A run that begins again and does not get back all that it had: the event that it is.

A schedule that starts from its beginning, a reference that is the policy itself from one step on,
and a critic that begins anew belong together where they are seen at one step.
"""

import re
from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import column
from flatline.remarks.columns import Column, yours
from flatline.remarks.event import AFTER, FAR, NEAR, jumps_of
from flatline.remarks.plan import begins_anew, pause
from flatline.remarks.remark import Event
from flatline.remarks.shape import typical
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

BESIDE = 2
"""Columns that are told with it."""
ROWS = 10
"""Rows before and after a step that are compared."""
SMALLEST = 0.05
"""A change of the outcome that matters, of the span from 0 to 1 or of its own where it is more."""
NOTHING = 0.05
"""Share of the KL before, below which the rows after a step have next to none."""
GROWN = 5.0
"""Times that a KL has grown before, since the first rows."""
STAYS = 0.2
"""Share of its way since the first rows that an outcome or a length may go where it stays."""
OFTEN = 2
"""Times that a reference was replaced, above which it is moved by plan."""
FIRST = 0.5
"""Share of the level of its first rows that the loss of a critic that begins anew comes to."""
_CRITIC = re.compile(
    r"(.*[/_.])?(critic|values?|vf)[/_]loss([/_](avg|mean))?|loss/(value|critic|vf).*"
)


def began_again(trace: Trace, columns: list[Column], outcome: Column) -> Event | None:
    """The schedule starts from its beginning, after a long pause or where several columns jump; or
    the reference was replaced."""
    replaced = _replaced(columns, outcome)
    return _at_a_step(trace, columns, outcome, replaced) or next(
        (_with_the_kl(trace, columns, at) for at in replaced), None
    )


def _at_a_step(
    trace: Trace, columns: list[Column], outcome: Column, replaced: list[int]
) -> Event | None:
    rate = column(trace, "learning_rate")
    if len(rate) < 2 * ROWS or not np.isfinite(rate).all():
        return None
    jumps = [one for one in jumps_of(trace, columns) if one.column.name != "learning_rate"]
    for at in begins_anew(rate):
        here = sorted((one for one in jumps if abs(one.at - at) <= NEAR), key=lambda one: -one.far)
        waited, anew = pause(trace, at), _anew(rate, at)
        if not waited and len(here) < BESIDE and at not in replaced:
            continue
        step = float(trace.steps["step"][at])
        lost = list(_lost(columns, at, replaced))
        rest = [str(one) for one in here if not any(one.column.subject in each for each in lost)]
        told = [*([anew] if waited else []), *lost, *rest[: max(BESIDE - len(lost), 0)]]
        begun = f"the run begins again, {waited}" if waited else anew
        falls = _falls_behind(outcome, step)
        return Event(
            f"At step {step:g} {begun}: {'; '.join(told) if lost else ', '.join(told)}{falls}.",
            certain=bool(falls) or at in replaced,
            moves_reward=False,
        )
    return None


def _with_the_kl(trace: Trace, columns: list[Column], at: int) -> Event:
    waited = pause(trace, at)
    told = "; ".join(_lost(columns, at, [at]))
    before = f"the run begins again, {waited}: " if waited else ""
    text = f"At step {trace.steps['step'][at]:g} {before}{told}."
    return Event(text, certain=True, moves_reward=False)


def _anew(rate: np.ndarray, at: int) -> str:
    return f"the learning rate starts anew from {rate[at]:.2g} ({rate[at - 1]:.2g} before)"


def _replaced(columns: list[Column], outcome: Column) -> list[int]:
    """Rows at which the KL falls to next to nothing at once while the outcome and the length stay,
    which have moved since the first rows: the policy is not where it began, its reference is there.
    A reference that is moved by plan does so again and again."""
    kl = next((one.shape.values for one in columns if one.name == "kl"), np.zeros(0))
    length = next((one for one in columns if one.name == "completion_length"), None)
    stay = [one.shape.values for one in (outcome, length) if one is not None]
    if len(kl) < 2 * ROWS:
        return []
    # A level is at most twice the row before it, where the KL was near it still.
    soon = np.lib.stride_tricks.sliding_window_view(kl, AFTER).max(axis=1)
    falls_far = soon[ROWS : len(kl) - ROWS] < 2 * NOTHING * kl[ROWS - 1 : -ROWS - 1]
    found = []
    for at in (np.flatnonzero(falls_far) + ROWS).tolist():
        before = typical(kl[at - ROWS : at])
        falls = kl[at : at + AFTER].max() <= NOTHING * before and kl[at - 1] > before / 2
        if falls and before >= GROWN * typical(kl[:AFTER]) and kl[0] >= 0:
            found.append(at)
    whole = all(len(values) == len(kl) for values in stay)
    if not whole or len(found) > OFTEN or not all(_all_stay(stay, at) for at in found):
        return []
    return found


def _all_stay(columns: list[np.ndarray], at: int) -> bool:
    gone = []
    for values in columns:
        before, after = typical(values[at - ROWS : at]), typical(values[at : at + ROWS])
        off = float(np.diff(values).std()) / 2**0.5
        first, error = typical(values[:ROWS]), FAR * off / ROWS**0.5
        if abs(after - before) > max(error, STAYS * abs(before - first)):
            return False
        gone.append(abs(before - first) > 2 * error)
    return any(gone)


def _lost(columns: list[Column], at: int, replaced: list[int]) -> Iterator[str]:
    """What a run did not get back at a step."""
    for one in columns:
        values = one.shape.values
        if one.name == "kl" and at in replaced:
            before = one.bare(typical(values[at - ROWS : at]))
            yield (
                f"the KL falls from {before} to {one.number(float(values[at]))} at once while the "
                "policy stays what it was, so it is measured to another reference, the policy of "
                "that step: the KL before and after cannot be compared"
            )
        elif _CRITIC.fullmatch(plain(one.name)) and _is_new(values, at):
            before, since, first = (
                one.bare(typical(part))
                for part in (values[at - ROWS : at], values[at : at + AFTER], values[:AFTER])
            )
            goes = f"{one.subject} jumps from {before} to {since}, as in the first rows ({first})"
            yield f"{goes}: a critic that begins anew"


def _is_new(values: np.ndarray, at: int) -> bool:
    if not 2 * ROWS <= at <= len(values) - AFTER:
        return False
    first, before, after = values[:AFTER], values[at - ROWS : at], values[at : at + AFTER]
    return bool(after.min() > max(before.max(), FIRST * typical(first)) > 0) and typical(
        before
    ) < FIRST * typical(first)


def _falls_behind(outcome: Column, since: float) -> str:
    """How far the outcome falls after a step, and when it is back; empty where it does not."""
    values, step = outcome.shape.values, outcome.shape.step
    at = int(np.searchsorted(step, since))
    if at < ROWS or len(values) - at < ROWS:
        return ""
    before, off = typical(values[at - ROWS : at]), float(np.diff(values).std()) / 2**0.5
    around = np.lib.stride_tricks.sliding_window_view(values[at:], AFTER)
    later = np.median(around, axis=1)
    low = int(later.argmin())
    if before - later[low] < max(FAR * off, SMALLEST * max(1.0, float(np.ptp(values)))):
        return ""
    back = np.flatnonzero(later[low:] >= before)
    until = f" and is back by step {step[at + low + back[0]]:g}" if len(back) else ""
    falls = f"falls from {outcome.bare(before)} to {outcome.number(float(later[low]))}"
    return f"; {yours(outcome)} {falls} until step {step[at + low]:g}{until}"
