"""The same completion with the right answer and with a wrong one: the right one must earn more.

Nothing says what a reward function should pay. But where the data has right answers and a function
is given them, the whole reward must rise when nothing but the answer is exchanged for the right
one. It is tried in completions of the batch that mark one answer, and in the usual ways to mark
one, beside the gold of rows of the data. And a completion that gives no answer must earn less.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flatline.live.stage_found import StageFound, departs
from flatline.live.texts import MARKED
from flatline.live.trl.departure.asked_again import (
    UNLIKELY,
    USUAL,
    WAYS,
    Paid,
    calls,
    pay_for,
    plain,
)
from flatline.live.trl.departure.data import Heard
from flatline.live.trl.gold import parameters
from flatline.spec import Asked
from flatline.spec.numerics import PAID
from flatline.spec.rewards import Floats, total

ROWS = 16
"""Rows of the data whose gold is tried."""
ENOUGH = 4
"""Rows with a wrong answer as long as the right one; with fewer, any wrong answer will do."""
CARRIERS = 3
"""Completions of the batch that carry it: of one message, and of several."""
FEWEST = 2
"""Completions that must show what only some show."""
OPENING = "The right answer "
"""Every finding of this look begins with it."""
ABOUT = 0.75
"""Share of what the right answer earns above a wrong one that counts as the same: small parts for
form or length are paid beside it."""
DIFFERENT = 3
"""Answers that must be tried in several rows each."""
NO_ANSWER = {"": "an empty completion", "I do not know.": "'I do not know.'"}
"""Completions that answer nothing, as they are told."""
PIECES: Mapping[Callable[[str], slice], str] = {
    lambda answer: slice(0, (len(answer) + 1) // 2): "the first half",
    lambda answer: slice(1, -1): "the middle",
}
"""Pieces of an answer that nobody would call right, as they are told."""
LONG = 4
"""Characters of an answer from which on such pieces are no answers."""

Completion = Any
"""Text, or messages."""


class _Carrier(NamedTuple):
    """A completion with a place for an answer."""

    holding: Callable[[str], Completion]
    said: str = ""
    """The answer that it has."""
    row: int = -1
    """In the batch; none of it where it was made up."""
    turns: int = 1
    """Messages that it has."""


class _Effect(NamedTuple):
    carrier: _Carrier
    rises: int
    falls: int
    """Rows in which the right answer earns more, and less, than a wrong one."""
    right_R: Floats
    wrong_R: Floats
    """What each earns."""


class _Rows(NamedTuple):
    """Rows of the data with a right answer, and one that is wrong there."""

    rows: list[Mapping[str, Any]]
    right: list[str]
    wrong: list[str]


def judge_exchanged(trainer: Any, asked: Asked, heard: Heard) -> StageFound | None:
    """None where the right answer earns more, or where that cannot be told."""
    with suppress(Exception):  # functions that want more than the columns of a row tell nothing
        found = _verdict(trainer, asked, heard)
        return None if found is None else found[0]
    return None


def pay_for_gold(trainer: Any, asked: Asked, heard: Heard) -> Callable[[], str]:
    """Asks the functions again for one completion with the right answer, which it returns."""
    found = _verdict(trainer, asked, heard)
    assert found is not None
    tried = _rows_of(trainer, [*calls(trainer, heard)])
    assert tried is not None

    def again() -> str:
        for one in _judges([*calls(trainer, heard)]):
            one.pay(tried.rows[:1], [found[1].holding(tried.right[0])])
        return tried.right[0]

    return again


def _verdict(trainer: Any, asked: Asked, heard: Heard) -> tuple[StageFound, _Carrier] | None:
    paid = list(calls(trainer, heard))
    if not paid or len(paid) < len(trainer.reward_funcs):
        return None
    judges = _judges(paid)
    tried = _rows_of(trainer, paid)
    if not judges or tried is None:
        return None
    made_up = [_plainly(way, judges[0]) for way in WAYS]
    carriers = [*_carriers(judges[0]), *made_up]
    effects = [one for carrier in carriers for one in _effect(asked, paid, carrier, tried)]
    names = ", ".join(f"`{one.name}`" for one in judges)
    return (
        _upside_down(effects, tried, names)
        or _lost_after_turns(effects, tried, names)
        or _paid_for_a_piece(asked, paid, effects, tried, names)
        or _paid_for_nothing(asked, paid, effects, tried, names)
        or _blind_to_gold(judges, effects, tried)
        or _never_paid(asked, paid, effects, tried, names)
    )


def _judges(paid: Sequence[Paid]) -> list[Paid]:
    """The functions that ask for gold by its name; all that are given it where none does."""
    given = [one for one in paid if one.gold is not None]
    return [one for one in given if _asks_for_gold(one)] or given


def _asks_for_gold(one: Paid) -> bool:
    """Rewards that never look at an answer may be all that somebody wants."""
    return one.gold in parameters(one.function)


def _effect(
    asked: Asked, paid: Sequence[Paid], carrier: _Carrier, tried: _Rows
) -> Iterator[_Effect]:
    """One, or none where a function cannot take such a completion."""
    with suppress(Exception):
        right_R, wrong_R = (
            _totals(asked, paid, tried.rows, [carrier.holding(answer) for answer in answers])
            for answers in (tried.right, tried.wrong)
        )
        more_R = right_R - wrong_R
        yield _Effect(
            carrier, int((more_R > PAID).sum()), int((more_R < -PAID).sum()), right_R, wrong_R
        )


def _upside_down(
    effects: Sequence[_Effect], tried: _Rows, names: str
) -> tuple[StageFound, _Carrier] | None:
    worst = max(effects, key=lambda one: one.falls, default=None)
    if worst is None or worst.falls < USUAL * len(tried.rows) or any(one.rises for one in effects):
        return None
    return _told(
        f"{OPENING}earns less than a wrong one in {worst.falls} of {len(tried.rows)} rows where "
        f"nothing else differs, and more in none: {names}.",
        worst,
        tried,
        "Pay more for the right answer than for a wrong one: the comparison is inverted.",
    )


def _lost_after_turns(
    effects: Sequence[_Effect], tried: _Rows, names: str
) -> tuple[StageFound, _Carrier] | None:
    """Paid in one message and not as the last of several."""
    plain = max((one.rises for one in effects if one.carrier.turns == 1), default=0)
    later = [one for one in effects if one.carrier.turns > 1]
    if plain < USUAL * len(tried.rows) or len(later) < FEWEST or any(one.rises for one in later):
        return None
    return _told(
        f"{OPENING}earns more than a wrong one as the only message, but not as the last "
        f"of {later[0].carrier.turns} messages: {names}.",
        later[0],
        tried,
        "Read the answer from the last message of a completion.",
    )


def _paid_for_nothing(
    asked: Asked, paid: Sequence[Paid], effects: Sequence[_Effect], tried: _Rows, names: str
) -> tuple[StageFound, _Carrier] | None:
    """What gives no answer earns about as much as the right one, where wrong ones earn less."""
    best = max(effects, key=lambda one: (one.rises, one.right_R.mean()), default=None)
    if best is None or best.rises < USUAL * len(tried.rows):
        return None
    for said, told in NO_ANSWER.items():
        with suppress(Exception):  # a function that cannot judge it does not pay for it either
            nothing = _Carrier(partial(_always, paid[0].as_completion(said)))
            (effect,) = _effect(asked, paid, nothing, tried)
            enough_R = best.wrong_R + ABOUT * (best.right_R - best.wrong_R)
            rows = (effect.right_R >= enough_R) & (best.right_R > best.wrong_R + PAID)
            if rows.sum() >= USUAL * len(rows):
                at = int(rows.argmax())
                earned = (one[at] for one in (best.right_R, best.wrong_R, effect.right_R))
                return _departs(
                    f"{OPENING}earns hardly more than {told} in {rows.sum()} of {len(rows)} rows, "
                    f"although a wrong one earns less: {names}.",
                    "right {:g}, wrong {:g}, no answer {:g}".format(*earned),
                    nothing,
                    "Pay nothing where a completion gives no answer, or none that can be read.",
                )
    return None


def _paid_for_a_piece(
    asked: Asked, paid: Sequence[Paid], effects: Sequence[_Effect], tried: _Rows, names: str
) -> tuple[StageFound, _Carrier] | None:
    """A piece of the right answer earns all that the whole one does, as long as nothing that is
    wrong stands beside it: it is looked for in the right answer, and not the other way round."""
    best = max(effects, key=lambda one: (one.rises, one.right_R.mean()), default=None)
    if best is None or best.rises < USUAL * len(tried.rows):
        return None
    for cut, told in PIECES.items():
        with suppress(Exception):  # a function that cannot judge it does not pay for it either
            pieces = [answer[cut(answer)] for answer in tried.right]
            beside = [f"{piece}{wrong}" for piece, wrong in zip(pieces, tried.wrong, strict=True)]
            piece_R, beside_R = (
                _totals(asked, paid, tried.rows, [best.carrier.holding(text) for text in said])
                for said in (pieces, beside)
            )
            long = np.array([len(answer) >= LONG for answer in tried.right])
            tells = long & (best.right_R > best.wrong_R + PAID)
            whole = (piece_R >= best.right_R - PAID) & (beside_R < piece_R - PAID)
            rows = np.flatnonzero(tells & whole)
            if len(rows) >= max(FEWEST, USUAL * tells.sum()):
                at = rows[0]
                return _departs(
                    f"{OPENING}earns no more than {told} of it in {len(rows)} of {tells.sum()} "
                    f"rows, although a wrong one earns less: {names}.",
                    f"{tried.right[at][:40]!r} is right, and {pieces[at][:40]!r} earns as much "
                    f"({piece_R[at]:g}); {beside[at][:40]!r} earns {beside_R[at]:g}",
                    best.carrier,
                    "Look for the right answer in what was answered, not for what was answered in "
                    "the right answer (`gold in answer`), or compare the two.",
                )
    return None


def _blind_to_gold(
    judges: Sequence[Paid], effects: Sequence[_Effect], tried: _Rows
) -> tuple[StageFound, _Carrier] | None:
    """Every judge that asks for gold pays an answer in one row as in all others, right there or
    not. One of several may look at nothing but the length of gold; and what is right in one form
    may be as wrong as anything in another."""
    if any(one.rises >= USUAL * len(tried.rows) for one in effects):
        return None
    blind = [_blind(judge, tried) for judge in judges if _asks_for_gold(judge)]
    return blind[0] if all(blind) and blind else None


def _blind(judge: Paid, tried: _Rows) -> tuple[StageFound, _Carrier] | None:
    for way in WAYS:
        with suppress(Exception):
            told = _whatever_the_row(judge, way, tried)
            if told is not None:
                return _departs(
                    f"{OPENING}of one row earns the same where another is right: "
                    f"`{judge.name}` pays an answer whatever the gold of its row is.",
                    told,
                    _plainly(way, judge),
                    "Judge each answer by the gold of its own row: keep verdicts, if at all, "
                    "under the question and the answer.",
                )
    return None


def _whatever_the_row(judge: Paid, way: str, tried: _Rows) -> str | None:
    """An example, where each of some answers earns one and the same in every row that it is tried
    in, and one of them more than no answer where it is wrong; else None."""
    right_R, wrong_R, none_R = (
        np.array(pay_for(judge, tried.rows, said))
        for said in (
            [way.format(one) for one in tried.right],
            [way.format(one) for one in tried.wrong],
            ["I do not know."] * len(tried.rows),
        )
    )
    pays: dict[str, set[float]] = {}
    for text, earned in zip((*tried.right, *tried.wrong), (*right_R, *wrong_R), strict=True):
        pays.setdefault(text, set()).add(float(earned))
    several = [text for text in set(tried.right) if text in tried.wrong]
    gifts = np.flatnonzero(wrong_R > none_R + PAID)
    if len(several) < DIFFERENT or any(len(pays[one]) > 1 for one in several) or not len(gifts):
        return None
    at = gifts[0]
    return f"{tried.wrong[at][:40]!r} earns {wrong_R[at]:g} where {tried.right[at][:40]!r} is right"


def _always(completion: Completion, _answer: str) -> Completion:
    return completion


def _never_paid(
    asked: Asked, paid: Sequence[Paid], effects: Sequence[_Effect], tried: _Rows, names: str
) -> tuple[StageFound, _Carrier] | None:
    """Completions of the batch say the gold of their own row, and would earn as much without."""
    if any(one.rises or one.falls for one in effects):
        return None
    judge = _judges(paid)[0]
    if not _asks_for_gold(judge):
        return None
    gold = judge.given[judge.gold or ""]
    says = [one for one in _marked(judge) if one.said == plain(gold[one.row])]
    if len(says) < FEWEST or any(_earns_more(asked, paid, one, tried) for one in says):
        return None
    return _told(
        f"{OPENING}earns no more than a wrong one: {len(says)} completions of the batch give the "
        f"gold of their own row, and {names} would pay as much for another answer in its place.",
        _Effect(says[0], 0, 0, np.zeros(0), np.zeros(0)),
        tried,
        "Print what the function reads from such a completion beside what it reads from gold.",
    )


def _earns_more(asked: Asked, paid: Sequence[Paid], one: _Carrier, tried: _Rows) -> bool:
    """Whether a completion that is right earns more than with a wrong answer, in its own row."""
    wrong = _wrong(one.said, tried.right)
    own, other = (
        float(total(asked, np.array([[_number(p.instead(one.row, text)) for p in paid]]))[0])
        for text in (one.holding(one.said), one.holding(wrong))
    )
    return own > other + PAID


def _told(text: str, shown: _Effect, tried: _Rows, fix: str) -> tuple[StageFound, _Carrier]:
    answers = f"right {tried.right[0][:40]!r}, wrong {tried.wrong[0][:40]!r}"
    example = f"{answers}, in {str(shown.carrier.holding(tried.right[0]))[-120:]!r}"
    return _departs(text, example, shown.carrier, fix)


def _departs(text: str, example: str, carrier: _Carrier, fix: str) -> tuple[StageFound, _Carrier]:
    found = departs("rewards", text, example)
    expected = "the right answer earns more"
    return replace(found, by_chance=UNLIKELY, direct=True, expected=expected, fix=fix), carrier


def _rows_of(trainer: Any, paid: Sequence[Paid]) -> _Rows | None:
    """Rows of the data, each beside the gold of the next that has another; None without gold."""
    data = trainer.train_dataset
    column = next((one.gold for one in paid if one.gold is not None), None)
    if column is None or column not in (getattr(data, "column_names", None) or ()):
        return None
    step = max(1, len(data) // ROWS)
    rows = [data[at] for at in range(0, len(data), step)][:ROWS]
    right = [plain(row[column]) for row in rows]
    wrong = [_wrong(answer, (*right[k + 1 :], *right[:k])) for k, answer in enumerate(right)]
    alike = [k for k, other in enumerate(wrong) if len(other) == len(right[k])]
    kept = alike if len(alike) >= ENOUGH else range(len(rows))
    tried = _Rows([rows[k] for k in kept], [right[k] for k in kept], [wrong[k] for k in kept])
    return tried if all(tried.wrong) and all(tried.right) else None


def _wrong(answer: str, others: Sequence[str]) -> str:
    """Another answer, as long as the right one where there is such: a reward may count letters."""
    wrong = [other for other in others if other != answer]
    return next((other for other in wrong if len(other) == len(answer)), next(iter(wrong), ""))


def _carriers(judge: Paid) -> list[_Carrier]:
    """Some completions of one message, and some of several."""
    every = list(_marked(judge))
    plain = [one for one in every if one.turns == 1]
    return [*plain[:CARRIERS], *[one for one in every if one.turns > 1][:CARRIERS]]


def _marked(judge: Paid) -> Iterator[_Carrier]:
    """Completions of the batch that mark one answer, in what they say last."""
    for row, completion in enumerate(judge.given["completions"]):
        texts = [completion] if isinstance(completion, str) else _contents(completion)
        marks = [mark for text in texts for mark in MARKED.finditer(text)]
        if len(marks) == 1 and texts and MARKED.search(texts[-1]):
            at = marks[0].lastindex or 1
            said = plain(marks[0].group(at))
            yield _Carrier(_holding(completion, marks[0].span(at)), said, row, len(texts))


def _contents(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(one.get("content") or "") for one in messages]


def _holding(completion: Completion, span: tuple[int, int]) -> Callable[[str], Completion]:
    def exchanged(text: str, answer: str) -> str:
        return f"{text[: span[0]]}{answer}{text[span[1] :]}"

    def holding(answer: str) -> Completion:
        if isinstance(completion, str):
            return exchanged(completion, answer)
        *before, last = completion
        return [*before, {**last, "content": exchanged(str(last["content"]), answer)}]

    return holding


def _plainly(way: str, judge: Paid) -> _Carrier:
    """Nothing but the answer."""
    return _Carrier(lambda answer: judge.as_completion(way.format(answer)))


def _totals(
    asked: Asked,
    paid: Sequence[Paid],
    rows: Sequence[Mapping[str, Any]],
    completions: Sequence[Completion],
) -> Floats:
    columns = [[_number(p) for p in one.pay(rows, completions)] for one in paid]
    return np.nan_to_num(total(asked, np.array(columns).T))


def _number(paid: Any) -> float:
    return np.nan if paid is None else float(paid)
