"""Rows of a log become rows of `steps`: which step each is, and what its numbers are called.

Rows of the same step are one step: trainers log evaluation and training apart. Where a log goes
back, the run was resumed, and what it had from there on is of the branch that was given up. Rows
that name no step are counted, and the epoch says where they go back.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from flatline.stats import t_score
from flatline.trace.importers.aliases import COLUMNS, EVAL_STEP, STEP
from flatline.trace.importers.log import Entry, Log, nothing_in, quoted
from flatline.trace.importers.numbers import flat, number, unwrapped, whole
from flatline.trace.importers.resolve import Resolution, fills_nothing, plain, resolve, times

Numbers = dict[str, float]
_BOOKKEEPING = frozenset(
    {
        *("epoch", "_timestamp", "timestamp", "ts", "_runtime", "wall_time", "time"),
        *("train_speed(s/it)", *STEP),
    }
)
"""Names that repeat in every row of a step, so that repeating one is no sign of a resumed run."""
_OVER_THE_BATCH = ("frac_reward_zero_std",)
"""What TRL takes over the whole batch with scale_rewards="batch": no share of groups then."""
OF_THE_LONGEST = ("response_length/clip_ratio",)
"""verl's v1 trainer pads responses to the longest of the batch, and this is the share that are as
long as that: no limit need have cut any."""
_ONLY_V1 = "training/off_policy/"
_SHARES = frozenset({"zero_std_share", "clip_share", "truncated_share"})
_ROUNDED = 1e-6
"""A mean of ones over many processes may be a little more than one."""
TWICE, SURE = 5, 0.9995
"""Steps that were made twice, and how sure it must be, to say that they differ."""
_HELD_OUT = ("eval", "val", "dev", "test", "heldout")
LISTED = 4
"""Columns that are told beside the reward."""
COUNTED, OFTEN_COUNTED = 20, 0.9
"""Rows of a log whose step may have any name, at least, and the share of them that counts."""
OFTEN = 0.1
"""Share of the rows that go back, above which they are in no order."""
COUNTED_UP, ANEW, EVENLY = 10, 20, 4.0
"""Rows that show a clock, at least; in one of how many it may begin anew; and how many times as
fast it may go in one half of them."""
_TIMES = frozenset({"seconds", "seconds_sampling", "seconds_scoring", "seconds_backward"})
_STEP = frozenset(STEP)
_CANDIDATES = frozenset(name for names in COLUMNS.values() for name in names)


class Turn(NamedTuple):
    """Where a log goes back."""

    last: int
    step: int
    """From which step, and to which."""
    waited: float
    """Seconds between the last row before and the first after; NaN where no clock says so."""


class StepTable(NamedTuple):
    """The `steps` table of an imported log."""

    rows: list[dict[str, Any]]
    """In the order of their steps."""
    resolution: Resolution
    """What became of the metric names."""
    turns: list[Turn]
    """Where it goes back."""
    clock: str | None
    """The name of what fills `seconds`, where that counts up over the run."""


def step_table(log: Log, *, scale_rewards: str | None) -> StepTable:
    """The rows of `steps`; adds to the log's notes and to what could not be used."""
    entries = [Entry(entry.place, flat(unwrapped(entry.values))) for entry in log.entries]
    merging = _merged(log, _numbered(log, entries))
    by_step = merging.steps
    names = {name: None for numbers in by_step.values() for name in numbers}
    if not names:
        raise nothing_in(log, "row with a step and a number")
    leave_out = (_OVER_THE_BATCH if scale_rewards == "batch" else ()) + left_out(names)
    resolution = _possible(log, by_step, resolve(names, leave_out=leave_out))
    log.notes.extend(resolution.notes)
    log.notes.extend(_made_again(merging, resolution.aliases))
    if scale_rewards is None:
        log.notes.extend(_perhaps_of_batches(by_step, resolution.aliases.get("zero_std_share")))
    filled = [(column, name, times(name)) for column, name in resolution.aliases.items()]
    rows = [_row(step, by_step[step], filled) for step in sorted(by_step)]
    clocks = [column for column in _TIMES & resolution.aliases.keys() if _counts_up(rows, column)]
    for column in sorted(clocks):
        _take_differences(rows, column)
        name = resolution.aliases[column]
        log.notes.append(f"{name!r} counts up: `{column}` is what it goes up by in a step.")
    clock = resolution.aliases["seconds"] if "seconds" in clocks else None
    return StepTable(rows, resolution, merging.turns, clock)


def _counts_up(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Whether a column is a clock, whatever it is called: it goes up in every row, about as fast in
    both halves, and far; it may begin anew where a run was resumed."""
    known: list[float] = [row[column] for row in rows if math.isfinite(row.get(column, math.nan))]
    if len(known) < COUNTED_UP:
        return False
    apart = [after - before for before, after in pairwise(known)]
    half = len(apart) // 2
    paces = median(apart[:half]), median(apart[half:])
    if sum(each <= 0 for each in apart) > len(known) // ANEW:
        return False
    return 0 < max(paces) <= EVENLY * min(paces) and max(known) >= 2 * known[0]


def _take_differences(rows: Sequence[dict[str, Any]], column: str) -> None:
    """The time of a step in place of the time since the run began; unknown where that begins."""
    before: tuple[int, float] | None = None
    for row in rows:
        at = row["step"], row.pop(column, math.nan)
        if not math.isfinite(at[1]):
            continue
        if before is not None and at[1] > before[1]:
            row[column] = (at[1] - before[1]) / (at[0] - before[0])
        before = at


def left_out(names: Iterable[str]) -> tuple[str, ...]:
    """Names that do not mean in this log what they mean in others."""
    return OF_THE_LONGEST if any(name.startswith(_ONLY_V1) for name in names) else ()


def _possible(log: Log, by_step: Mapping[int, Numbers], resolution: Resolution) -> Resolution:
    """Without shares that are none: a percentage, or a count under the name of a share."""
    aliases = dict(resolution.aliases)
    for column in _SHARES & aliases.keys():
        name = aliases[column]
        values = ((step, by_step[step].get(name, 0.0) * times(name)) for step in sorted(by_step))
        bad = [step for step, value in values if value < 0 or value > 1 + _ROUNDED]
        if bad:
            del aliases[column]
            log.bad.append(
                f"`{column}` is left out: {name!r} is {by_step[bad[0]][name]:g} at step {bad[0]}, "
                "and a share lies between 0 and 1"
            )
    return replace(resolution, aliases=aliases)


def _perhaps_of_batches(by_step: Mapping[int, Numbers], name: str | None) -> list[str]:
    """What to know of a share that nothing but the scale of the rewards tells from a yes or no."""
    seen = {numbers[name] for numbers in by_step.values() if name in numbers}
    if (
        name is None
        or plain(name) not in _OVER_THE_BATCH
        or len(seen) < 2
        or not seen <= {0.0, 1.0}
    ):
        return []
    return [
        f'{name!r} is 0 or 1 in every row: with scale_rewards="batch" it is about the whole '
        "batch, and groups may be equal where it is 0."
    ]


def _row(step: int, numbers: Numbers, filled: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    """What each column is filled with, and all numbers under their own names."""
    row: dict[str, Any] = {
        column: numbers[name] * unit for column, name, unit in filled if name in numbers
    }
    return {"step": step, **row, "metrics": numbers}


def _numbered(log: Log, entries: Sequence[Entry]) -> list[tuple[int, Numbers]]:
    """Every usable row with its step."""
    names = _step_names(entries) or _counter(entries)
    if not names:
        log.notes.append("The log names no step: its rows are numbered from 1.")
    elif plain(names[0]) not in _STEP:
        entries = list(_of_the_row_before(entries, names[0]))
        log.notes.append(f"`{names[0]}` is the step: it counts the rows.")
    found: list[tuple[int, Numbers]] = []
    epochs: list[float] = []
    outside = 0
    trained: set[str] = set()
    for entry in entries:
        numbers = _numbers(log, entry)
        if not numbers.keys() - _BOOKKEEPING:
            continue  # text, tables, empty rows: nothing is lost
        name = _step_name(entry, names)
        if names and name is None and _outside(entry, names, numbers):
            outside += 1
            continue
        named = numbers.keys() - _BOOKKEEPING
        if names:
            step = _step_of(log, entry, name or names[0])
        elif epochs and not named & trained and all(map(_is_no_step, named)):
            step = len(epochs)  # an evaluation, or the end of a run, is of the step before it
        else:
            step = _counted(epochs, numbers.get("epoch"))
            trained |= named
        if step is not None:
            found.append((step, numbers))
    if outside:
        log.notes.append(f"Rows that belong to no step are left out: {outside}.")
    return found


def _outside(entry: Entry, names: Sequence[str], numbers: Numbers) -> bool:
    """Whether a row without a step is of none: it says so, or has only what fills no column."""
    # prime-rl samples the load of its sampler by the clock; TRL times its parts between steps.
    says_so = any(name in entry.values and entry.values[name] is None for name in names)
    says_so = says_so or "log_history" in entry.values  # ms-swift ends its log with all of it
    return says_so or all(fills_nothing(name) for name in numbers.keys() - _BOOKKEEPING)


def _numbers(log: Log, entry: Entry) -> Numbers:
    found: Numbers = {}
    for name, value in entry.values.items():
        if plain(name) in _STEP or isinstance(value, bool):  # yes or no is no measurement
            continue
        as_number = number(value)
        if as_number is not None:
            found[name] = as_number
        elif value not in (None, "") and plain(name) in _CANDIDATES:
            log.bad.append(f"{entry.place}: `{name}` is not a number: {quoted(value)}")
    return found


def _step_names(entries: Sequence[Entry]) -> list[str]:
    """The best name of the step, then those that may stand in for it: they always agree with it.

    That of evaluations comes first of these and need not occur beside the best one: W&B's count of
    calls may agree by chance, up to the evaluation.
    """
    order = {name: rank for rank, name in enumerate(STEP)}
    names = set().union(*(entry.values for entry in entries))
    seen = {name for name in names if plain(name) in order}
    ranked = sorted(seen, key=lambda name: (order[plain(name)], name))
    agreed = [name for name in ranked[1:] if _agree(entries, ranked[0], name)]
    return ranked[:1] + sorted(agreed, key=lambda name: plain(name) != EVAL_STEP)


def _counter(entries: Sequence[Entry]) -> list[str]:
    """The one name that goes up by one from row to row, whatever the log calls its steps."""
    names = entries[len(entries) // 2].values if len(entries) >= COUNTED else {}
    found = []
    for name in names:
        counted = [number(entry.values[name]) for entry in entries if _filled(entry, name)]
        known = [value for value in counted if value is not None]
        often = len(known) == len(counted) >= OFTEN_COUNTED * len(entries)
        if often and known[0] in (0, 1) and all(b - a == 1 for a, b in pairwise(known)):
            found.append(name)
    return found if len(found) == 1 else []


def _of_the_row_before(entries: Sequence[Entry], name: str) -> Iterator[Entry]:
    """The rows, each with its step: an evaluation has that of the row before it, and what stands
    before all rows is about the run."""
    last: Any = None
    for entry in entries:
        last = entry.values[name] if _filled(entry, name) else last
        if last is not None:
            yield Entry(entry.place, {**entry.values, name: last})


def _agree(entries: Sequence[Entry], one: str, other: str) -> bool:
    both = [e.values for e in entries if _filled(e, one) and _filled(e, other)]
    seen = bool(both) or plain(other) == EVAL_STEP
    return seen and all(whole(v[one]) == whole(v[other]) for v in both)


def _filled(entry: Entry, name: str) -> bool:
    """Whether the row has the name with a value: exports write every name into every row."""
    return entry.values.get(name) not in (None, "")


def _step_name(entry: Entry, names: Sequence[str]) -> str | None:
    """The first of these that the row has."""
    for name in names:
        if _filled(entry, name):
            return name
    return None


def _step_of(log: Log, entry: Entry, name: str) -> int | None:
    if not _filled(entry, name):
        log.bad.append(f"{entry.place}: no `{name}`")
        return None
    step = whole(entry.values[name])
    if step is None:
        log.bad.append(f"{entry.place}: `{name}` is no step: {quoted(entry.values[name])}")
    return step


def _is_no_step(name: str) -> bool:
    return plain(name).startswith("eval") or fills_nothing(name)


def _counted(epochs: list[float], epoch: float | None) -> int:
    """The number of a row that names no step, behind those of these epochs. Where the epoch goes
    back, the rows that had it and all after them are given up."""
    before = epochs[-1] if epochs else 0.0
    epoch = before if epoch is None or not math.isfinite(epoch) else epoch
    while epoch < before and epochs and epochs[-1] >= epoch:
        epochs.pop()
    epochs.append(epoch)
    return len(epochs)


class _Merging:
    """Steps as they come, one set of numbers each."""

    def __init__(self, *, in_order: bool) -> None:
        self.steps: dict[int, Numbers] = {}
        self.repeated: Counter[int] = Counter()
        """Steps whose row was overwritten by the next."""
        self.turns: list[Turn] = []
        self.before: dict[int, Numbers] = {}
        """What steps had that were made again."""
        self.given_up = 0
        """Rows of the branches that were given up."""
        self._order: list[int] = []
        self._in_order = in_order
        self._reached: dict[str, int] = {}
        """Name -> the latest step that has it."""
        self._written: Numbers = {}
        """The row before."""

    def add(self, step: int, numbers: Numbers, last: int) -> None:
        names = numbers.keys() - _BOOKKEEPING
        if not self._order or step > self._order[-1]:  # nearly every row of a log
            self._order.append(step)
            self.steps[step], self._written = dict(numbers), numbers
            self._reached |= dict.fromkeys(names, step)
            return
        held = self.steps.get(step, {})
        other = any(numbers[name] != held[name] for name in names & held.keys())
        if step < last and (other or (not held and self._in_order and self._passed(step, names))):
            self._go_back(step, _clock(numbers) - _clock(self._written))
        elif other:
            self.repeated[step] += 1
        self._written = numbers
        if step not in self.steps:
            self.steps[step] = {}
            insort(self._order, step)
        self.steps[step].update(numbers)
        self._reached |= {name: max(step, self._reached.get(name, step)) for name in names}

    def _passed(self, step: int, names: Collection[str]) -> bool:
        """Whether a later step has what this one brings: an evaluation may come late."""
        return any(self._reached.get(name, step) > step for name in names)

    def _go_back(self, step: int, waited: float) -> None:
        self.turns.append(Turn(self._order[-1], step, waited))
        # From the end of the order: looking at every step each time would take for ever.
        while self._order and self._order[-1] >= step:
            at = self._order.pop()
            self.given_up += 1 + self.repeated.pop(at, 0)
            self.before[at] = self.steps.pop(at)


def _clock(numbers: Numbers) -> float:
    """The time at which a row was written."""
    return next((v for name, v in numbers.items() if plain(name) in COLUMNS["time"]), math.nan)


def _merged(log: Log, rows: Sequence[tuple[int, Numbers]]) -> _Merging:
    """One set of numbers per step, and a note where a log said a thing twice."""
    back = sum(later < step for (step, _), (later, _) in pairwise(rows))
    # Rows that are in no order at all were not resumed again and again.
    merging = _Merging(in_order=back <= max(1, OFTEN * len(rows)))
    last = -1
    for step, numbers in rows:
        merging.add(step, numbers, last)
        last = step
    if merging.repeated:
        log.notes.append(_told_repeated(merging.repeated))
    if merging.turns:
        log.notes.append(_told_turns(merging))
    return merging


def _made_again(merging: _Merging, aliases: Mapping[str, str]) -> Iterator[str]:
    """How the steps that were made twice differ: by the reward, by where the rate begins, and by
    what else certainly differs, which a resumed run would not."""
    twice = sorted(merging.before.keys() & merging.steps.keys())
    names = {name for at in twice for name in merging.before[at].keys() & merging.steps[at].keys()}
    pairs = {
        name: [
            (merging.before[at][name], merging.steps[at][name])
            for at in twice
            if name in merging.before[at] and name in merging.steps[at]
        ]
        for name in sorted(names)
    }
    rate, reward = aliases.get("learning_rate", ""), aliases.get("reward", "")
    told, apart = [], {name: _apart(each) for name, each in pairs.items()}
    if 0 < apart.get(reward, 0.0) < math.inf:
        told.append(
            "had a reward of {:.3g} at first and of {:.3g} again".format(*_ends(pairs[reward]))
        )
    if pairs.get(rate) and pairs[rate][0][1] < pairs[rate][0][0] / 2:
        before, again = pairs[rate][0]
        told.append(f"begin with a learning rate of {again:.2g} (at first: {before:.2g})")
    if told:
        yield f"The steps that were made twice {', and '.join(told)}."
    besides = [n for n in apart if apart[n] and n not in (reward, rate, aliases.get("seconds"))]
    others = sorted(besides, key=lambda name: -apart[name])
    others = [name for name in others if plain(name) not in _BOOKKEEPING | {"t", "num_tokens"}]
    scores = [name for name in pairs if plain(name).startswith(_HELD_OUT) and name not in others]
    if len(pairs.get(reward, ())) >= TWICE and not apart[reward] and not told and not others:
        both = "{:.3g} and {:.3g}".format(*_ends(pairs[reward]))
        yield f"The {len(twice)} steps that were made twice are alike: a reward of {both}."
    if told and others:
        listed = [*others[:LISTED], *scores[:1]]
        each = ["`{}` {:.3g} and {:.3g}".format(name, *_ends(pairs[name])) for name in listed]
        yield f"At first and again they also had: {', '.join(each)}."


def _ends(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    before, again = zip(*pairs, strict=True)
    return fmean(before), fmean(again)


def _apart(pairs: Sequence[tuple[float, float]]) -> float:
    """How many standard errors the two are apart; 0 where that is not certain."""
    apart = [again - before for before, again in pairs]
    if len(apart) < TWICE or not all(map(math.isfinite, apart)):
        return 0.0
    off, mean = stdev(apart) / math.sqrt(len(apart)), abs(fmean(apart))
    if off <= _ROUNDED * mean:
        return math.inf if mean > 0 else 0.0
    return mean / off if mean > t_score(len(apart) - 1, SURE) * off else 0.0


def _told_repeated(repeated: Counter[int]) -> str:
    more = f" (and {len(repeated) - 1} more)" if len(repeated) > 1 else ""
    rows = repeated.total()
    return (
        f"Step {min(repeated)}{more} occurs more than once: the last row wins, "
        f"{rows} {'row is' if rows == 1 else 'rows are'} overwritten."
    )


def _told_turns(merging: _Merging) -> str:
    """One sentence, whatever happened."""
    last, step, _ = merging.turns[0]
    times = len(merging.turns)
    rows = f"{merging.given_up} earlier {'row' if merging.given_up == 1 else 'rows'}"
    if times > 1:
        where = f"The log goes back {times} times, first from step {last} to step {step}"
    elif step <= min(merging.steps):
        return (
            f"The log begins again: after step {last} comes step {step}. Only what follows counts, "
            f"and {rows} {'is' if merging.given_up == 1 else 'are'} left out."
        )
    else:
        where = f"The log goes back from step {last} to step {step}"
    return f"{where}, as a resumed run does. The later rows count, {rows} do not."
