"""Does a row's gold belong to its question?

A reward function that is given the answer of another row pays for nothing that can be learned, and
every other stage is right. Answers that match the gold of the row before or after their own, more
often than the gold of rows anywhere else, tell of a column that was shifted.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from flatline.live.measure.played import Played
from flatline.live.records import DataOrder
from flatline.live.stage_found import StageFound, departs
from flatline.live.trl.departure.asked_again import of_the_batch
from flatline.live.trl.departure.data import CHEAP, Heard, _name
from flatline.tails import binomial

NEIGHBOURS = (-1, 1)
ELSEWHERE = (-7, -5, -4, -3, 3, 4, 5, 7)
"""Rows whose gold says how often an answer matches by chance."""
BY_CHANCE = 1e-3
"""How likely as many prompts may be to match a neighbour by chance."""


def judge_gold(
    trainer: Any, heard: Heard, order: DataOrder | None, whole: Played
) -> StageFound | None:
    """None where every gold is its own row's, or where it cannot be told."""
    places = None if order is None else _places(trainer.train_dataset, order, whole)
    if heard.seconds > CHEAP or places is None:
        return None
    for at, (given, _) in sorted(heard.calls.items()):
        columns = [name for name in given if name in trainer.train_dataset.column_names]
        columns = [name for name in columns if name != "prompt"]
        every = of_the_batch(given, whole)
        if not columns or every is None:
            continue
        plain = {name: value for name, value in every.items() if name not in columns}
        pay = _Pay(trainer.reward_funcs[at], plain, trainer.train_dataset, columns, places)
        with suppress(Exception):  # a function that cannot take another row's gold tells nothing
            found = _shifted(_name(trainer, at), pay, trainer.num_generations)
            if found is not None:
                return found
    return None


class _Pay:
    """What a function pays when every row has the gold of another row of the data."""

    def __init__(
        self,
        function: Any,
        plain: Mapping[str, Any],
        data: Any,
        columns: Sequence[str],
        places: Sequence[int],
    ) -> None:
        self._function, self._plain, self._data = function, plain, data
        self._columns, self._places = columns, places

    def __call__(self, offset: int, group: int) -> list[float]:
        """Mean of each group, with the gold that stands so many rows further on."""
        rows = [self._data[(place + offset) % len(self._data)] for place in self._places]
        gold = {name: [row[name] for row in rows] for name in self._columns}
        paid = [float(p or 0.0) for p in self._function(**self._plain, **gold)]
        return [sum(paid[k : k + group]) / group for k in range(0, len(paid), group)]


def _shifted(name: str, pay: _Pay, group: int) -> StageFound | None:
    own = pay(0, group)
    for offset in NEIGHBOURS:
        there = pay(offset, group)
        wins = sum(b > a for a, b in zip(own, there, strict=True))
        if sum(there) <= sum(own) or wins <= len(own) / 2:
            continue
        chance = [b > a for far in ELSEWHERE for a, b in zip(own, pay(far, group), strict=True)]
        rate = (sum(chance) + 1) / (len(chance) + 2)
        likely = 2 * binomial(wins, len(own), rate)
        if likely > BY_CHANCE:
            continue
        where = "before" if offset < 0 else "after"
        return replace(
            departs(
                "rewards",
                f"Answers earn more from `{name}` with the gold of the row {where} their own in "
                f"{wins} of {len(own)} prompts; rows further away would pay more in "
                f"{sum(chance)} of {len(chance)}. The gold is shifted against its rows.",
                f"mean pay of {len(own)} prompts: {sum(own) / len(own):.3f} with their own gold, "
                f"{sum(there) / len(own):.3f} with that of the row {where}",
                measured=(sum(there) - sum(own)) / len(own),
            ),
            by_chance=likely,
        )
    return None


def _places(data: Any, order: DataOrder, whole: Played) -> list[int] | None:
    """Where each row of the batch stands in the data; None where it cannot be found, or where rows
    that share its prompt could be it as well."""
    if not hasattr(data, "column_names") or not hasattr(data, "__getitem__"):
        return None
    known: dict[str, set[int]] = {}
    for place in order.prompt_N:
        known.setdefault(repr(data[int(place)]["prompt"]), set()).add(int(place))
    found = [known.get(repr(row.get("prompt")), set()) for row in whole.rows]
    return [min(places) for places in found] if all(len(one) == 1 for one in found) else None
