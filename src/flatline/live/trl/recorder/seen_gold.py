"""Which column of the data holds right answers, where its name does not say so: seen from the pay.

A column is taken for gold where completions that are what it says earn the most that is paid, which
no more than a few others do; or where the pay follows how like it completions are; or, where
nobody was paid anything, where most prompts are answered with something that stands in it. No
reward function is called for it. Until a column shows itself, no gold is recorded.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from numbers import Real
from typing import Any

import numpy as np

from flatline.live.batch import PROMPT_NAMES
from flatline.live.texts import marked_answer

NO_GOLD = frozenset({"prompt", "prompts", "completion", "completions", "completion_ids"})
FEWEST, PROMPTS = 3, 2
"""Completions that are what the column says, and prompts that these are of."""
OF_THE_BEST = 0.3
"""Share of the best paid completions that these must be: other ways to be paid as much are rare."""
GROUPS, FOLLOWS = 8, 0.6
"""Groups of different pay, and the correlation inside them, where pay follows likeness."""
KIND, UNPAID_PROMPTS, DIFFERENT = 0.8, 8, 4
"""Share of the prompts whose most common answer stands in the column, prompts, and such answers."""
LONGEST = 200
"""Characters of an answer; of longer texts nothing is compared."""
MOST = 512
"""Rollouts that are looked at together; a column that has not shown itself by then never does."""
EQUAL = 1e-6
SURE, ANSWERS = 0.5, 4
"""Share of the answers to a prompt that agree, and answers, for it to be a prompt that the policy
is sure of."""
SURE_PROMPTS, MOST_PROMPTS = 24, 100
"""How many of these tell anything, and how many are looked at."""

Rows = Sequence[tuple[Mapping[str, Any], Any, np.ndarray]]
"""Rows of the data, what was answered and what each reward function paid for it."""


class SeenGold:
    """Looks at rollouts as they come, until a column shows itself."""

    def __init__(self, names: Sequence[str], data: Any) -> None:
        """`names` are those that say so by themselves; with one of them in the data, or without
        data, nothing is looked for."""
        self._names, self._data = tuple(names), data
        columns = set(getattr(data, "column_names", None) or ())
        self._open = data is not None and not columns.intersection(names)
        self._refuted: set[str] = set()
        self._rows: list[tuple[Mapping[str, Any], str, np.ndarray]] = []
        self._due = 1
        """So many are awaited: each look compares all, so the next is at half as many again."""

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that hold right answers."""
        return self._names

    def look(self, rows: Rows) -> None:
        """Does a column show itself?"""
        if not self._open:
            return
        read = [(data, _said(answer), paid) for data, answer, paid in rows]
        self._rows += [one for one in read if len(one[1]) <= LONGEST][: MOST - len(self._rows)]
        if len(self._rows) < self._due:
            return
        self._due, self._open = min(3 * len(self._rows) // 2 + 1, MOST), len(self._rows) < MOST
        names = _candidates([data for data, _, _ in self._rows]) - self._refuted
        found = [name for name in sorted(names) if self._is_gold(name)]
        if found:
            self._names, self._open = (found[0],), False
        if not self._open:
            self._rows = []

    def _is_gold(self, name: str) -> bool:
        rows = [one for one in self._rows if one[0].get(name) is not None]
        golds = [str(data[name]).strip() for data, _, _ in rows]
        answers = [answer for _, answer, _ in rows]
        pay = np.nan_to_num(np.array([paid for _, _, paid in rows], dtype=float))
        own = np.array([answer == gold for answer, gold in zip(answers, golds, strict=True)])
        differs = [at for at in range(pay.shape[1]) if np.ptp(pay[:, at]) > EQUAL]
        if not differs:
            return not own.any() and self._of_the_kind(name, rows)
        best = [pay[:, at] >= pay[:, at].max() - EQUAL for at in differs]
        if own.any() and not any(each[own].all() for each in best):
            self._refuted.add(name)
            return False
        prompts = len({golds[at] for at in np.flatnonzero(own)})
        if own.sum() >= FEWEST and prompts >= PROMPTS:
            return any(each[own].all() and own[each].mean() >= OF_THE_BEST for each in best)
        return any(_follows(pay[:, at], answers, golds, rows) for at in differs)

    def _of_the_kind(self, name: str, rows: Sequence[tuple[Mapping[str, Any], str, Any]]) -> bool:
        """Whether most prompts are answered with what the column says of some row."""
        values = set(_values(self._data, name))
        said: dict[str, Counter[str]] = {}
        for data, answer, _ in rows:
            said.setdefault(_prompt(data), Counter())[answer] += 1
        common = [counts.most_common(1)[0][0] for counts in said.values()]
        fits = [answer for answer in common if answer in values]
        enough = len(common) >= UNPAID_PROMPTS and len(set(fits)) >= DIFFERENT
        return enough and len(fits) >= KIND * len(common)


class FitOfGold:
    """Whether what a policy is sure of is the gold of its own row, or of some other row of the
    data: a run sees few rows, so that the trace alone would not tell."""

    def __init__(self, data: Any, tell: Callable[..., None]) -> None:
        self._data, self._tell = data, tell
        self._values: Counter[str] | None = None
        self._sure: dict[str, tuple[str, str]] = {}
        """What it says to a prompt, and what is right there."""

    def look(self, rows: Rows, names: Sequence[str]) -> None:
        """Groups of rollouts; what is known is told whenever it changes."""
        columns = getattr(self._data, "column_names", None) or ()
        name = next((name for name in names if name in columns), None)
        if name is None or len(self._sure) >= MOST_PROMPTS:
            return
        said: dict[str, list[str]] = {}
        gold: dict[str, str] = {}
        for data, answer, _ in rows:
            if data.get(name) is not None:
                said.setdefault(_prompt(data), []).append(_said(answer).lower())
                gold[_prompt(data)] = _answer(data[name])
        for prompt, answers in said.items():
            answer, count = Counter(answers).most_common(1)[0]
            if len(answers) >= ANSWERS and count >= SURE * len(answers):
                self._sure[prompt] = answer, gold[prompt]
        if len(self._sure) >= SURE_PROMPTS:
            self._say(name)

    def _say(self, name: str) -> None:
        if self._values is None:
            self._values = Counter(map(_answer, _values(self._data, name)))
        pairs = [*self._sure.values()][:MOST_PROMPTS]
        known = [answer for answer, _ in pairs if answer in self._values]
        shown = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
        self._tell(
            prompts=len(pairs),
            own=sum(answer == right for answer, right in pairs),
            of_data=len(known),
            different=len(set(known)),
            chance=sum(self._values[a] for a in known) / len(pairs) / self._values.total()
            if known
            else 0.0,
            answer=shown[0],
            gold=shown[1],
        )


def _answer(gold: Any) -> str:
    """Without the way to it."""
    return str(gold).split("####")[-1].strip().lower()


def _follows(
    pay: np.ndarray,
    answers: Sequence[str],
    golds: Sequence[str],
    rows: Sequence[tuple[Mapping[str, Any], str, Any]],
) -> bool:
    """Whether what is more like the column is paid better, prompt by prompt."""
    group = np.unique([_prompt(data) for data, _, _ in rows], return_inverse=True)[1]
    for like in (_agree, _alike):
        likeness = np.array([like(a, g) for a, g in zip(answers, golds, strict=True)])
        found = []
        for each in np.unique(group):
            here = group == each
            if np.ptp(pay[here]) > EQUAL:
                flat = np.ptp(likeness[here]) == 0
                found.append(0.0 if flat else np.corrcoef(pay[here], likeness[here])[0, 1])
        if len(found) >= GROUPS and np.mean(found) >= FOLLOWS:
            return True
    return False


def _agree(answer: str, gold: str) -> float:
    """Share of the places with the same character."""
    same = sum(a == b for a, b in zip(answer, gold, strict=False))
    return same / max(len(answer), len(gold), 1)


def _alike(answer: str, gold: str) -> float:
    return SequenceMatcher(None, answer, gold, autojunk=False).ratio()


def _candidates(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Columns of short texts or numbers that are not the same in all rows."""
    first = rows[0] if rows else {}
    names = {n for n, v in first.items() if isinstance(v, str | Real) and not isinstance(v, bool)}
    names -= NO_GOLD | set(PROMPT_NAMES)
    return {name for name in names if len({str(row.get(name)) for row in rows}) > 1}


def _values(data: Any, name: str) -> list[str]:
    try:
        return [str(one).strip() for one in data[name]]
    except Exception:  # a stream, or data of somebody's own
        return []


def _prompt(data: Mapping[str, Any]) -> str:
    return str(data.get("prompt"))


def _said(completion: Any) -> str:
    """The answer: what is marked, else all of the last message."""
    text = completion
    if not isinstance(completion, str):
        last = completion[-1] if completion else {}
        text = str(last.get("content") or "")
    return (marked_answer(text) or text).strip()
