"""What completions give as their answer, read here without the run's own reward functions.

Strict on purpose: an answer counts only where the model marked one answer and no other, after any
thinking, and was not cut off; or where completions are nothing but an answer. What is left out
costs power; what is read wrongly would cost trust.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.right import right_part
from flatline.tasks.numbers import parse_number
from flatline.tasks.scoring import normalize_answer
from flatline.trace import Trace
from flatline.trace.memo import once

LOOKED_AT = 20_000
"""Rollouts that are read; of a longer run an even sample of whole groups."""
ENDED = ("answered", "eos", None)
"""How a rollout ends that no limit cut off."""
LONGEST = 2_000
"""Characters of an answer; more is no answer."""
BEFORE_IT = ("</think>", "</tool_response>", "<|im_start|>")
"""What the final message comes after; an answer before it was not the last word."""
ENDINGS = re.compile(r"(\s*<[^<>\s]{1,40}>)+\s*$")
"""Special tokens that a completion ends with; they are no part of its answer."""
JOINTS = re.compile(r"(?<=\w)[^\w\s](?=\w)|(?<!\w)[-.](?=\d)|[=+<>^|~/]")
"""What normalising leaves out and must not."""
SHORT, NEARLY_ALL = 40, 0.9
"""Characters of a completion that is nothing but an answer, and the share that must be so."""
FEWEST_WRONG = 3
"""Wrong answers that must be there for the lowest reward to mean "wrong"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rollouts whose answer could be read, and what the run paid for it."""

    row: np.ndarray
    """Row in `trace.rollouts`."""
    right: np.ndarray
    """Whether the marked answer is the recorded gold answer."""
    paid: np.ndarray
    """What the run says: 1 right, 0 wrong; NaN where the run has no such number."""
    lowest: np.ndarray
    """Whether the whole reward is the lowest of the run, and wrong answers show what that is."""
    prompt: np.ndarray
    """Its prompt, as text."""
    answer: list[str]
    """The marked answer."""
    gold: list[str]
    """The gold answer."""
    source: str
    """Where `paid` comes from, in words."""

    @property
    def missed(self) -> np.ndarray:
        """Right answers that are paid as wrong ones, or with the lowest reward there is."""
        return np.asarray(self.right & ((self.paid == 0) | self.lowest))

    @property
    def surely_gifted(self) -> np.ndarray:
        """Numbers other than the gold number that are paid as right: those have no aliases."""
        numbers = zip(map(parse_number, self.answer), map(parse_number, self.gold), strict=True)
        other = [None not in pair and pair[0] != pair[1] for pair in numbers]
        return np.asarray(self.gifted & np.array(other, dtype=bool))

    @property
    def gifted(self) -> np.ndarray:
        """Other answers that are paid as right. Aliases are not recorded, so some are right."""
        return np.asarray(~self.right & (self.paid == 1))


@once
def judge(trace: Trace) -> Judged:
    """Every rollout whose answer can be read; raises `NotRecorded` without texts or gold.

    A reward may insist on one way to give an answer. Where some way was ever paid as right, answers
    given in another are left out.
    """
    rollouts = trace.rollouts
    texts, golds, reward = rollouts["completion"], rollouts["gold"], rollouts["reward"]
    ends = rollouts["finish"] if "finish" in rollouts else np.full(len(texts), None, dtype=object)
    ids = rollouts["prompt_id"] if "prompt_id" in rollouts else np.arange(len(texts))
    paid, source = _paid(trace)
    usable = np.isfinite(reward) & np.array([end in ENDED for end in ends], dtype=bool)
    known = [r for r in looked_at(trace).tolist() if usable[r] and texts[r] and golds[r]]
    read = {row: found for row in known if (found := given_answer(texts[row]))}
    read = read or _nothing_but_answers({row: texts[row] for row in known})
    gold = {row: _gold(golds[row]) for row in known}
    says = {row for row, (_, answer) in read.items() if same_answer(answer, gold[row])}
    earns = (paid == 1) | (np.isnan(paid) & (reward > np.nanmin(reward)))
    paid_ways = {way for row, (way, _) in read.items() if paid[row] == 1}
    paid_ways |= {read[row][0] for row in says if earns[row]}
    best = (paid == 1) | (np.isnan(paid) & (reward >= np.nanmax(reward)))
    others = [_holds(texts[row], gold[row]) for row in known if row not in says and best[row]]
    # Where as much is paid without gold, it is the form alone that is paid.
    asks = bool(paid_ways) or (bool(others) and np.mean(others) >= NEARLY_ALL)
    rows = [row for row, (way, _) in read.items() if not asks or way in paid_ways]
    wanted = [gold[row] for row in rows]
    right = np.array([row in says for row in rows], dtype=bool)
    told = np.sum(~right) >= FEWEST_WRONG
    at = np.array(rows, dtype=np.int64)
    return Judged(
        row=at,
        right=right,
        paid=paid[at],
        lowest=(reward[at] <= np.nanmin(reward)) & (np.nanmax(reward) > np.nanmin(reward)) & told,
        prompt=np.array([str(ids[row]) for row in rows]),
        answer=[read[row][1] for row in rows],
        gold=wanted,
        source=source,
    )


def looked_at(trace: Trace) -> np.ndarray:
    """The rows whose answers are read: all, or so many whole groups of a long run."""
    n = len(trace.rollouts)
    if n <= LOOKED_AT:
        return np.arange(n)
    try:
        index = trace.groups().index
    except NotRecorded:
        index = np.arange(n)
    groups = int(index.max()) + 1
    kept = np.linspace(0, groups - 1, max(1, LOOKED_AT * groups // n)).astype(np.int64)
    return np.flatnonzero(np.isin(index, kept))


def _holds(text: str, gold: str) -> bool:
    """Whether gold stands in a text as a word of its own: the answer, in a form not known here."""
    return bool(gold) and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text) is not None


def _nothing_but_answers(texts: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """Where nobody marks anything and nearly all completions are a few words: each is its answer.
    None where somebody writes more."""
    plain = {row: ENDINGS.sub("", text).strip() for row, text in texts.items()}
    short = {row: text for row, text in plain.items() if len(text) <= SHORT and "\n" not in text}
    if len(short) < NEARLY_ALL * len(plain):
        return {}
    return {row: ("whole", text) for row, text in short.items() if text}


def given_answer(text: str) -> tuple[str, str] | None:
    """How a text marks its answer (a tag, a box or `####`) and the answer; None for two answers."""
    text = text[max(0, *(text.rfind(mark) for mark in BEFORE_IT)) :]
    ways = {
        "tag": _between(text, "<answer>", "</answer>"),
        "box": _boxed(text),
        "hashes": _after_hashes(text),
    }
    found = {
        (way, answer.strip())
        for way, answers in ways.items()
        for answer in answers
        if answer.strip() and len(answer) <= LONGEST
    }
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=1024)  # all rollouts of a group have one
def _gold(text: str) -> str:
    """The right answer itself: a worked solution marks it like a completion."""
    found = given_answer(text)
    return found[1] if found else str(text).strip()


def _paid(trace: Trace) -> tuple[np.ndarray, str]:
    """What the run says about right and wrong: its own part, else a reward of two values, unless
    several parts make it: the one that varies may be about the form."""
    name = right_part(trace)
    reward = trace.rollouts["reward"]
    if not np.isfinite(reward).any():
        raise NotRecorded("rollouts.reward")
    if name is not None:
        return trace.parts()[name], f"`{name}`"
    values = np.unique(reward[np.isfinite(reward)])
    if len(values) == 2 and len(trace.parts()) < 2:
        return np.where(np.isfinite(reward), (reward == values[1]) * 1.0, np.nan), "the reward"
    return np.full(len(reward), np.nan), "the reward"


def same_answer(answer: str, gold: str) -> bool:
    plain = normalize_answer(answer)
    if plain == normalize_answer(gold) and _joints(answer) == _joints(gold):
        return bool(plain) or answer.strip() == gold.strip()  # of punctuation alone nothing is left
    numbers = parse_number(answer), parse_number(gold)
    return numbers[0] is not None and numbers[0] == numbers[1]


def _joints(text: str) -> list[str]:
    """Punctuation that means something: inside of a word or number, signs, and symbols of sums
    anywhere: 3.5 is not 35, and `13=` is not 13."""
    return JOINTS.findall(text.strip())


def states(text: str, gold: str) -> bool | None:
    """Whether a text marks gold as its answer; None where it marks none, or where another answer
    may be an alias: only two numbers are surely different."""
    found = given_answer(text)
    if found is None:
        return None
    answer, wanted = found[1], _gold(gold)
    if same_answer(answer, wanted):
        return True
    return None if None in (parse_number(answer), parse_number(wanted)) else False


def _between(text: str, opened: str, closed: str) -> list[str]:
    parts = text.split(opened)[1:]
    return [part.split(closed, 1)[0] for part in parts if closed in part]


def _boxed(text: str) -> list[str]:
    """Contents of `\\boxed{...}` without braces inside; others are left to the reward."""
    found = [part.split("}", 1)[0] for part in text.split("\\boxed{")[1:] if "}" in part]
    return [part for part in found if "{" not in part]


def _after_hashes(text: str) -> list[str]:
    return [part.split("\n", 1)[0].split("<", 1)[0] for part in text.split("####")[1:]]
