"""Reward functions asked again about the same completions, and about gold itself.

A reward belongs to its row: it is the same wherever the row stands, whichever rows are beside it,
and however often it is asked for. And gold, given as the answer, must earn what a right answer
earns. Only functions that are fast are asked again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

from flatline.live import ranks
from flatline.live.measure.played import Played
from flatline.live.stage_found import StageFound, departs
from flatline.live.trl.departure.data import CHEAP, Heard, _name, alike
from flatline.live.trl.gold import NOT_COLUMNS, gold_names

ROWS = 64
"""Rows of the data whose gold is given as the answer."""
TRIED = 16
"""Rows by whose columns it is tried which of them holds right answers."""
WAYS = ("{}", "<answer>{}</answer>", "\\boxed{{{}}}", "#### {}")
"""How an answer may be marked."""
USUAL = 0.5
"""Share of the gold that a way must earn the full pay with, to be the function's own."""
FEWEST = 3
"""Different gold answers that must show it; rows whose pay must have changed."""
UNLIKELY = 1e-3
"""Stands for reasons of the user's own that a function may have."""


class Paid(NamedTuple):
    """One function: what it was given and what it returned."""

    name: str
    function: Any
    given: Mapping[str, Any]
    paid: list[Any]
    group: int
    gold: str | None
    """The column that holds right answers, of what it is given."""

    def again(self, rows: Sequence[int] | None = None) -> list[Any]:
        """What it pays for some of the rows, in this order."""
        if rows is None:
            return list(self.function(**self.given))
        size = len(self.paid)
        return list(self.function(**{n: _some(v, rows, size) for n, v in self.given.items()}))

    def instead(self, row: int, completion: Any) -> Any:
        """What it pays for one row of the batch with another completion."""
        given = {n: _some(v, [row], len(self.paid)) for n, v in self.given.items()}
        return next(iter(self.function(**{**given, "completions": [completion]})))

    def pay(self, rows: Sequence[Mapping[str, Any]], completions: Sequence[Any]) -> list[Any]:
        """What it pays for other completions, of rows of the data."""
        size = len(self.paid)
        each = {n for n, v in self.given.items() if isinstance(v, list) and len(v) == size}
        given = {n: v for n, v in self.given.items() if n not in each}
        given |= {n: [row[n] for row in rows] for n in self.given if n in rows[0]}
        given |= {"prompts": [row["prompt"] for row in rows], "completions": list(completions)}
        if "completion_ids" in self.given:
            given["completion_ids"] = [[] for _ in rows]
        return list(self.function(**given))

    def as_completion(self, text: str) -> Any:
        """A text in the form in which the function is given completions."""
        plain = isinstance(self.given["completions"][0], str)
        return text if plain else [{"role": "assistant", "content": text}]


def judge_again(trainer: Any, heard: Heard, whole: Played) -> StageFound | None:
    """None where every reward is decided by its own row, or where that cannot be told. What mixes
    rows of several prompts shows on the whole batch, where a few rows are one group."""
    for one in calls(trainer, heard):
        with suppress(Exception):  # a function that can be asked only once tells nothing
            found = _remembers(one) or _by_order(one) or _by_batch(one)
            if found is not None:
                return found
        with suppress(Exception):
            every = _of_all(one, heard, whole)
            found = None if every is None else _by_order(every) or _by_batch(every)
            if found is not None:
                return found
    return None


def of_the_batch(given: Mapping[str, Any], whole: Played) -> dict[str, Any] | None:
    """What a function would be given for every row of the batch; None where that is not known."""
    result = None if whole.generated is None else whole.generated.result
    if not isinstance(result, tuple) or len(result) < 3:
        return None
    found = {
        name: [row[name] for row in whole.rows] if name in whole.rows[0] else value
        for name, value in given.items()
    }
    said = result[3] if len(result) > 3 else result[2]
    prompts = [row["prompt"] for row in whole.rows]
    known = {"prompts": prompts, "completions": list(said), "completion_ids": list(result[1])}
    return found | {name: value for name, value in known.items() if name in given}


def _of_all(one: Paid, heard: Heard, whole: Played) -> Paid | None:
    given = of_the_batch(one.given, whole)
    times = len(whole.rows) / max(1, len(one.paid))
    if given is None or heard.seconds * times > CHEAP:
        return None
    return one._replace(given=given, paid=list(one.function(**given)))


def judge_unmatchable(trainer: Any, heard: Heard) -> StageFound | None:
    """None where gold, given as the answer, is paid as right, or where that cannot be told."""
    data = trainer.train_dataset
    if not hasattr(data, "column_names") or not hasattr(data, "__len__"):
        return None
    for one in calls(trainer, heard):
        if one.gold is None or one.gold not in data.column_names:
            continue
        with suppress(Exception):  # a function that wants more than these columns tells nothing
            found = _unmatchable(one, data, one.gold)
            if found is not None:
                return found
    return None


def calls(trainer: Any, heard: Heard) -> Iterator[Paid]:
    if ranks.anybody(heard.seconds > CHEAP):
        return
    names = gold_names(trainer)
    for at, (given, paid) in sorted(heard.calls.items()):
        function, group = trainer.reward_funcs[at], int(trainer.num_generations)
        gold = next((name for name in names if name in given), None)
        one = Paid(_name(trainer, at), function, given, paid, group, gold)
        if gold is None and at not in heard.earns_most:
            heard.earns_most[at] = _earns_most(one, trainer.train_dataset, names)
        yield one if gold else one._replace(gold=heard.earns_most[at])


def _earns_most(one: Paid, data: Any, names: Sequence[str]) -> str | None:
    """The column whose own text, as the answer, earns as much as anything in the batch, and the
    text of another row less: right answers under a name that does not say so. None where a column
    has a name that does, or where several would do."""
    columns = set(getattr(data, "column_names", None) or ())
    if columns.intersection(names) or not hasattr(data, "__len__"):
        return None
    rows = [data[at] for at in range(0, len(data), max(1, len(data) // TRIED))][:TRIED]
    found = [name for name in sorted(columns & one.given.keys()) if _is_paid(one, rows, name)]
    return found[0] if len(found) == 1 else None


def _is_paid(one: Paid, rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row[name] for row in rows]
    texts = [str(value).strip() for value in values if isinstance(value, str | Real)]
    if name in NOT_COLUMNS or len(texts) < len(rows) or len(set(texts)) < FEWEST:
        return False
    others = [next(o for o in (*texts[k:], *texts) if o != text) for k, text in enumerate(texts)]
    top = max(float(paid or 0.0) for paid in one.paid)
    with suppress(Exception):  # it wants more than the columns of a row, or another form
        for way in WAYS:
            own, other = (
                pay_for(one, rows, [way.format(t) for t in said]) for said in (texts, others)
            )
            better = [a > b and a >= top for a, b in zip(own, other, strict=True)]
            worse = any(a < b for a, b in zip(own, other, strict=True))
            if sum(better) >= USUAL * len(rows) and not worse:
                return True
    return False


def _remembers(one: Paid) -> StageFound | None:
    """Paid otherwise the second time, and alike from then on: no lot is drawn like that."""
    second = one.again()
    changed = _changed(second, one.paid)
    if len(changed) < FEWEST or not alike(one.again(), second):
        return None
    row = changed[0]
    return departs(
        "rewards",
        f"`{one.name}` pays {len(changed)} of {len(second)} rows differently when it is called "
        "a second time: it remembers something.",
        f"row {row} earns {one.paid[row]} at first and {second[row]} from then on",
        measured=len(changed) / len(second),
    )


def _by_order(one: Paid) -> StageFound | None:
    """The same rows from the last to the first. A function that draws lots is left alone."""
    turned = one.again(range(len(one.paid))[::-1])[::-1]
    if alike(turned, one.paid) or not alike(one.again(), one.paid):
        return None
    row = _changed(turned, one.paid)[0]
    return departs(
        "rewards",
        f"What `{one.name}` pays for a row depends on the rows around it.",
        f"row {row} earns {one.paid[row]} in the batch and {turned[row]} in reverse order",
    )


def _by_batch(one: Paid) -> StageFound | None:
    """Half of the groups by themselves: a function may compare the rows of one group."""
    groups = len(one.paid) // one.group
    rows = range(groups // 2 * one.group)
    if not rows:
        return None
    own = [one.paid[row] for row in rows]
    alone = one.again(rows)
    if alike(alone, own) or not alike(one.again(), one.paid):
        return None
    row = _changed(alone, own)[0]
    return replace(
        departs(
            "rewards",
            f"What `{one.name}` pays for a row depends on other prompts of the batch.",
            f"row {row} earns {own[row]} in the batch and {alone[row]} in half of it",
        ),
        by_chance=UNLIKELY,
    )


def _unmatchable(one: Paid, data: Any, gold: str) -> StageFound | None:
    step = max(1, len(data) // ROWS)
    rows = [data[at] for at in range(0, len(data), step)][:ROWS]
    rows, answers = _judged(one, rows, [plain(row[gold]) for row in rows])
    pays = {way: pay_for(one, rows, [way.format(answer) for answer in answers]) for way in WAYS}
    top = max(max(pay) for pay in pays.values())
    way, pay = max(pays.items(), key=lambda pair: sum(paid >= top for paid in pair[1]))
    right = {a for a, p in zip(answers, pay, strict=True) if p >= top}
    # The same gold may be paid beside one question and not beside another: that is no format.
    lost = [k for k, p in enumerate(pay) if p < top and answers[k] not in right]
    if len({answers[k] for k in lost}) < FEWEST or len(right) < FEWEST:
        return None
    others = pay_for(one, rows, [way.format(answer) for answer in (*answers[1:], answers[0])])
    earned, by_others = (sum(p >= top for p in paid) / len(rows) for paid in (pay, others))
    if top <= 0 or earned < USUAL or by_others > USUAL / 2:  # it does not pay for gold
        return None
    return replace(
        departs(
            "rewards",
            f"No answer can earn the gold of {len(lost)} of {len(rows)} rows: `{one.name}` pays "
            "the gold of the others in full when it is given as the answer, and theirs not.",
            *(f"{way.format(answers[k])[:80]!r} earns {pay[k]:g} of {top:g}" for k in lost[:3]),
            measured=len(lost) / len(rows),
        ),
        by_chance=UNLIKELY,
    )


def _judged(
    one: Paid, rows: Sequence[Mapping[str, Any]], answers: Sequence[str]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Rows for which the function pays anything: None says that a row is another function's."""
    paid = one.pay(rows, [one.as_completion(answer) for answer in answers])
    known = [k for k, p in enumerate(paid) if p is not None]
    return [rows[k] for k in known], [answers[k] for k in known]


def plain(gold: Any) -> str:
    """The answer alone, of gold that shows how it came about."""
    return str(gold).split("####")[-1].strip()


def pay_for(one: Paid, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[float]:
    """What the function pays for these texts as completions of these rows."""
    return [float(paid or 0.0) for paid in one.pay(rows, [one.as_completion(t) for t in texts])]


def _some(value: Any, rows: Sequence[int], size: int) -> Any:
    whole = isinstance(value, list) and len(value) == size
    return [value[row] for row in rows] if whole else value


def _changed(now: Sequence[Any], before: Sequence[Any]) -> list[int]:
    pairs = zip(now, before, strict=True)
    return [row for row, (a, b) in enumerate(pairs) if not alike([a], [b])]
