"""What the columns do: each in a clause, those that change together in one sentence."""

from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import column
from flatline.hypotheses.logs import not_numbers
from flatline.hypotheses.one_number import rewards_differ
from flatline.hypotheses.trend import Trend, trend_of
from flatline.remarks.columns import (
    HELD_OUT,
    MINOR,
    OTHER,
    PARTS,
    SETTINGS,
    Column,
    listed,
    once,
    sentence,
)
from flatline.remarks.effort import grown
from flatline.remarks.remark import Remark
from flatline.remarks.shape import FEWEST, typical
from flatline.remarks.telling import Clause, clauses_of, reward_in_words, stays, uncertain
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

SOON = 0.05
"""Share of all rows within which a change follows another one."""
TWICE = 2.0
"""Factor by which a reward jumps, so that what does not jump with it is told."""
AROUND, AT_LEAST = 10, 5
"""Rows before and after a step that are compared, at most and at least."""
SHOWN = 8
"""Steps or columns that are listed."""
ENOUGH = 20
"""Rows that show that nothing moves."""
POLICY = {"kl": "KL", "entropy": "entropy", "completion_length": "length"}
"""What shows whether a policy moves."""
TOLD_ELSEWHERE = ("learning_rate", "loss")
_ORDER = {0: 2.0, 1: 5.0, PARTS: 21.0, 3: 20.0, 4: 30.0, SETTINGS: 31.0, OTHER: 32.0}
"""Rank of a column -> where it is told."""
_IN_ONE_LINE, FEW = {20.0, 21.0, 31.0, 32.0, 90.0}, 4
"""What is told in one sentence, and of how many columns at once."""
NOTHING = 1e-6
"""A KL below it is rounding."""


def moving(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """Everything that the columns show one by one, and at the same step."""
    yield from _no_numbers(trace)
    columns = once(columns)
    clauses = [clause for one in columns for clause in clauses_of(one)]
    # The schedule is told for itself, unless somebody changed it on the way.
    clauses = [c for c in clauses if c.column.name != "learning_rate" or c.column.shape.levels]
    moved = {clause.column.name for clause in clauses}
    groups = _together(clauses)
    rest = [one for one in columns if one.name not in moved]
    trend = trend_of(trace)
    # A reward that certainly moves has its own line; where it was set, it may move anyhow.
    moves = trend is not None and trend.flat is False
    beside = [one for one in rest if not (moves and one.name == "reward")]
    for group in groups:
        yield Remark(25, _told_together(group, beside))
    grouped = {id(clause) for group in groups for clause in group}
    alone = [clause for clause in clauses if id(clause) not in grouped]
    reward = next((one for one in columns if one.name == "reward"), None)
    if reward is not None and len(reward.shape) >= FEWEST and not reward.shape.constant:
        goes = [one for one in alone if one.column is reward]
        yield Remark(1, reward_in_words(reward, goes))
    # Evaluations have a line of their own.
    alone = [one for one in alone if one.column is not reward and one.column.words.rank != HELD_OUT]
    elsewhere = grown(columns)
    alone = [one for one in alone if one.column.name not in elsewhere]
    yield from _alone(alone, _never(columns), trend)
    yield from _same(trace, rest)
    yield from _constant(trace, columns)


def _never(columns: list[Column]) -> list[str]:
    """What does not happen in any row."""
    known = [one for one in columns if one.words.never and len(one.shape) >= FEWEST]
    return [one.words.never for one in known if not one.shape.values.any()]


def _alone(clauses: list[Clause], never: list[str], trend: Trend | None) -> Iterator[Remark]:
    """Parts in one sentence, and so are shares and unknown columns; others have a line each."""
    by_name: dict[str, list[Clause]] = {}
    for clause in clauses:
        by_name.setdefault(clause.column.name, []).append(clause)
    by_order: dict[float, list[str]] = {}
    for first, *rest in by_name.values():
        told = ", and ".join([str(first), *(one.text for one in rest)])
        order = _ORDER.get(first.column.words.rank, 90.0)
        by_order.setdefault(order, []).append(told + _beside_the_reward(first.column, trend))
    if never:
        by_order.setdefault(_ORDER[3], []).extend(never)
    for order, told_ in by_order.items():
        at_once = FEW if order in _IN_ONE_LINE else 1
        for at in range(0, len(told_), at_once):
            yield Remark(order, sentence(told_[at : at + at_once]))


def _beside_the_reward(one: Column, trend: Trend | None) -> str:
    """That the total does not show the change of a part, or that a share goes the other way."""
    shape = one.shape
    way = np.sign(shape.ends[1] - shape.ends[0]) if shape.moves or shape.since else 0
    set_early = shape.since > len(shape) / 2  # as a setting is that was warmed up
    counts = plain(one.name).endswith("epoch")
    if trend is None or not way or one.ours or set_early or counts:
        return ""
    if one.part and trend.flat is not False:
        return ", and the total does not show it"
    share = shape.values.min() >= 0 and shape.values.max() <= 1
    if one.words.rank > OTHER or not share:
        return ""
    # A reward that rose first and falls now goes both ways, and so no column against it.
    gained = trend.change.value
    against = (trend.rises and way < 0 < gained) or (trend.falls and gained < 0 < way)
    return f", while the reward {'rises' if way < 0 else 'falls'}" if against else ""


def _together(clauses: list[Clause]) -> list[list[Clause]]:
    """What happens at the same step, or about when something happens from row to row."""
    groups: list[list[Clause]] = []
    left = [one for one in clauses if not one.column.minor]
    while anchors := [(one.at, one) for one in left if one.at is not None]:
        # What somebody set comes first: the rest may follow from it.
        begin, first = min(anchors, key=lambda one: (one[0], not one[1].column.setting))
        rest = [one for one in left if one is not first and _is_near(one, first, begin)]
        left = [one for one in left if one is not first and not any(one is r for r in rest)]
        if first.column.setting or any(one.column is not first.column for one in rest):
            groups.append([first, *rest])
    return groups


def _is_near(one: Clause, anchor: Clause, begin: float) -> bool:
    """Whether it happens a few rows after a step, or about there."""
    step = anchor.column.shape.step
    place, soon = int(np.searchsorted(step, begin)), max(1, int(SOON * len(step)))
    before, until = step[max(place - soon, 0)], step[min(place + soon, len(step) - 1)]
    if one.at is not None and one.at not in one.around:
        return bool(begin <= one.at <= until)
    return any(before <= at <= until for at in one.around)


def _told_together(group: list[Clause], columns: list[Column]) -> str:
    first, *rest = group
    at = f" at step {first.at:g}"
    once = [str(one).replace(at, "", 1) for one in rest if one.at == first.at]
    later = [str(one) for one in rest if one.at != first.at]
    told = [str(first)]
    told += [f"at the same step {'; '.join(once)}"] if once else []
    told += [f"around then, {'; '.join(later)}"] if later else []
    return sentence([*told, *_where_it_was_set(group, columns), *_unmoved(group, columns)])


def _where_it_was_set(group: list[Clause], columns: list[Column]) -> Iterator[str]:
    """What else differs in the steps in which a setting did: there is one split to ask about."""
    setting = group[0].column.shape
    if not group[0].column.setting or len(setting.levels) > 3:
        return
    borders = [float(setting.step[at]) for at in setting.levels[1:]]
    for one in columns:
        certain = one.shape.differs(borders)
        if one.minor or not (certain or one.name == "reward") or one.shape.constant:
            continue
        at = np.searchsorted(one.shape.step, borders)
        before, inside, *after = (one.bare(typical(v)) for v in np.split(one.shape.values, at))
        around = f"({before} before, {after[0]} after)" if after else f"({before} before)"
        unsure = "" if certain else ", which may be noise"
        yield f"{one.subject} is {inside} {'in these steps' if after else 'since'} {around}{unsure}"


def _unmoved(group: list[Clause], columns: list[Column]) -> Iterator[str]:
    """What does not jump where the reward does."""
    jump = next((one for one in group if one.column.name == "reward"), None)
    if jump is None or jump.at is None or not _jumps(jump.column, jump.at):
        return
    still = [one.subject for one in columns if _as_before(one, jump.at)]
    if still:
        yield f"{listed(still[:SHOWN])} {_do(still)} not jump there"


def _as_before(one: Column, at: float) -> bool:
    """Whether the rows before and after a step are of the same size, of a column worth naming."""
    shape = one.shape
    if len(shape) < ENOUGH or shape.constant or shape.levels or one.name == "learning_rate":
        return False
    return (one.ours or one.words.rank == OTHER) and not one.minor and not _jumps(one, at)


def _jumps(one: Column, at: float) -> bool:
    """Whether the rows after a step are of another size than those before it."""
    before, after = one.shape.values[one.shape.step < at], one.shape.values[one.shape.step >= at]
    if min(len(before), len(after)) < AT_LEAST:
        return True
    low, high = sorted((float(before[-AROUND:].mean()), float(after[:AROUND].mean())))
    return high > 0 and low < high / TWICE


def _do(several: list[str]) -> str:
    return "does" if len(several) == 1 else "do"


def _same(trace: Trace, rest: list[Column]) -> Iterator[Remark]:
    """Columns that do not change, and those of which that is not certain."""
    rest = [one for one in rest if len(one.shape) >= FEWEST and not one.shape.constant]
    rest = [one for one in rest if 1 < one.words.rank < MINOR and one.name not in TOLD_ELSEWHERE]
    rest = [one for one in rest if not one.shape.counts_up]
    still = [one for one in rest if stays(one)]
    known = {name for name in POLICY if np.isfinite(column(trace, name)).sum() >= ENOUGH}
    unmoved = {one.name for one in still} | {name for name in known if _is_nothing(trace, name)}
    if len(known) > 1 and known <= unmoved and rewards_differ(trace):
        if policy := [one for one in still if one.name in POLICY]:
            levels = [f"{POLICY[one.name]} {_level(one)}" for one in policy]
            told = f"The policy hardly moves although rewards differ: {', '.join(levels)}."
            yield Remark(26, told)
        others = [one for one in still if one.name not in POLICY]
    else:
        others = still
    if others:
        yield Remark(50, sentence([_unchanged(others)]))
    open_ = [one for one in rest if one not in still]
    unsure = [text for one in open_ if not one.shape.moves and (text := uncertain(one))]
    guesses = [text for text in unsure if " from " in text or " at first" in text]
    if guesses:
        yield Remark(49, f"Perhaps (it may be noise): {', '.join(guesses[:SHOWN])}.")
    if small := [text for one in rest if one.shape.moves and (text := uncertain(one))]:
        yield Remark(54, f"Certain, but small: {', '.join(small[:SHOWN])}.")
    if unsure := [text for text in unsure if text not in guesses and text not in small]:
        told = ", ".join(unsure[:SHOWN])
        yield Remark(51, f"No certain change from the first third to the last: {told}.")


def _unchanged(several: list[Column]) -> str:
    names = [f"{POLICY.get(one.name, one.subject)} ({_level(one)})" for one in several[:SHOWN]]
    names += [f"{len(several) - SHOWN} more"] if len(several) > SHOWN else []
    return f"{listed(names)} {_do(names)} not change"


def _level(one: Column) -> str:
    level = float(one.shape.values.mean())
    return one.number(level) if one.words.unit == " tokens" else one.bare(level)


def _is_nothing(trace: Trace, name: str) -> bool:
    """A KL that is rounding."""
    return name == "kl" and bool(np.nanmax(column(trace, name)) < NOTHING)


def _constant(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """Columns that are one number: first those that may be parts or settings, then a trainer's own,
    of which that is no news."""
    still = [one for one in columns if one.shape.constant and len(one.shape) >= FEWEST]
    still = [one for one in still if one.name != "learning_rate"]
    telling = [one for one in still if one.ours or one.part or _is_theirs(trace, one)]
    rest = [one for one in still if one not in telling and not one.minor]
    for order, several in ((24, telling), (91, rest)):
        if clauses := [*_zeros(several), *_constants(several)]:
            yield Remark(order, sentence(clauses[:SHOWN]))


def _is_theirs(trace: Trace, one: Column) -> bool:
    """Whether no trainer that we know logs it, so that somebody meant something by it."""
    return one.name in (trace.run.get("unrecognised") or ()) and not one.minor


def _constants(columns: list[Column]) -> Iterator[str]:
    """Columns that are another number throughout."""
    for one in columns:
        if value := float(one.shape.values[0]):
            why = ": it pays everybody the same" if one.part else ""
            yield f"{one.subject} is {one.number(value)} in all {len(one.shape)} rows{why}"


def _zeros(columns: list[Column]) -> Iterator[str]:
    """Columns that are 0 throughout, those of as many rows together."""
    nothing = [one for one in columns if not one.shape.values[0] and not one.words.never]
    nothing = [one for one in nothing if not one.minor]
    for rows in dict.fromkeys(len(one.shape) for one in nothing):
        zeros = [one for one in nothing if len(one.shape) == rows]
        why = next((f": {one.words.zero}" for one in zeros if one.words.zero), "")
        names = listed([one.subject for one in zeros])
        yield f"{names} {'is' if len(zeros) == 1 else 'are'} 0 in all {rows} rows{why}"


def _no_numbers(trace: Trace) -> Iterator[Remark]:
    """Rows whose loss or gradient is NaN or infinite; a row that lacks them is none."""
    for what, name in (("loss", "loss"), ("gradient norm", "grad_norm")):
        bad = not_numbers(trace.steps, name) if name in trace.steps else np.zeros(0, bool)
        if not bad.any():
            continue
        own = (trace.run.get("aliases") or {}).get(name)
        alike = [f"`{n}`" for n in trace.metric_names if n != own and _gone(trace, n, bad)]
        more = [f"{len(alike) - FEW} more"] if len(alike) > FEW else []
        also = f", and {listed([*alike[:FEW], *more])} with it" if alike else ""
        rows = f"{bad.sum()} of {len(bad)} rows"
        yield Remark(
            18, f"The {what} is no number in {rows} ({_which(trace.steps['step'], bad)}){also}."
        )


def _which(step: np.ndarray, rows: np.ndarray) -> str:
    """The steps of some rows."""
    at, where = np.flatnonzero(rows), step[rows]
    if len(at) > 2 and (np.diff(at) == 1).all():
        return f"steps {where[0]:g} to {where[-1]:g}"
    return f"steps {', '.join(f'{one:g}' for one in where[:SHOWN])}{' ...' * (len(at) > SHOWN)}"


def _gone(trace: Trace, name: str, rows: np.ndarray) -> bool:
    """Whether a column has a number in all other rows, and in none of these."""
    return bool((np.isnan(trace.metric(name)) == rows).all())
