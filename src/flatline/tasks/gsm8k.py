"""GSM8K: grade-school word problems with one numeric answer and no tools.

A row of the official files, whose `answer` is a worked solution that ends in the number:

    {"question": "A robe takes 2 bolts of blue fiber and half that much white fiber. ...",
     "answer": "It takes 2/2=<<2/2=1>>1 bolt of white fiber\\nSo ... 2+1=<<2+1=3>>3 ...\\n#### 3"}

https://huggingface.co/datasets/openai/gsm8k (MIT). The dataset `lab` is the built-in `stories`.

Parts of the reward:
    exact_match  the number after `####` is the gold number; two different numbers are no answer
    format       exactly one `####`, with a plain number, as the last line; no tool was called

What stands in a leading `<think>` is read for neither.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from flatline.errors import DataError
from flatline.tasks import stories
from flatline.tasks.base import (
    BadToolCall,
    Episode,
    Message,
    Observation,
    Problem,
    Score,
    Script,
    Task,
    ToolCall,
    Weights,
)
from flatline.tasks.datasets import Row
from flatline.tasks.numbered import Generator, numbered_rows, required_text
from flatline.tasks.numbers import format_number, parse_number
from flatline.tasks.scoring import after_thought
from flatline.tasks.weights import merged_weights

SYSTEM = "Reason step by step, then give the final number on a last line after '#### '."
WEIGHTS = {"exact_match": 1.0, "format": 0.2}

_EXAMPLE = '{"question": "...", "answer": "... #### 72"}'
_MARK = re.compile(r"####[ \t]*([^\n]*)")
_HEADING = re.compile(r"\**[0-9]+\.\s+\**\w")
_LAST_LINE = re.compile(r"(?:^|\n)####[ \t]*-?[0-9][0-9,]*(?:\.[0-9]+)?\s*\Z")
_STEP = re.compile(r"<<[^<>]*=([^<>=]*)>>")
_STEPS = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True, slots=True, kw_only=True)
class WordProblem(Problem):
    """A word problem with its worked solution."""

    solution: str
    """The official text, `####` and the number included."""


class GSM8KEpisode(Episode):
    """One play: a single message, scored by the number it ends in."""

    def __init__(self, problem: Problem, weights: Weights) -> None:
        super().__init__(problem)
        self._weights = weights

    def _run(self, call: ToolCall) -> Observation:
        raise AssertionError("GSM8K has no tools, so no call passes the check of its name")

    def score(self, final: str | None) -> Score:
        spoken = after_thought(final or "")
        answer, note = _settle(final, marked_numbers(spoken))
        # Assigned, not added: scoring twice must not count twice.
        self.events["malformed_answers"] = int(final is not None and answer is None)
        parts = {
            "exact_match": float(answer == parse_number(self.problem.answer)),
            "format": float(self._well_formed(spoken, answer)),
        }
        if note is None and not parts["format"]:
            note = "not exactly one `#### number` on the last line, or a tool was called"
        notes = () if note is None else (note,)
        return Score(reward=self._weights.combine(parts), parts=parts, notes=notes)

    def _well_formed(self, spoken: str, answer: Decimal | None) -> bool:
        called = self.events["malformed_calls"] + self.events["tool_errors"]
        alone = spoken.count("####") == 1 and _LAST_LINE.search(spoken) is not None
        return answer is not None and alone and not called


class GSM8K(Task):
    """Word problems without tools: the single-turn control."""

    name: ClassVar[str] = "gsm8k"

    def __init__(self, *, weights: Mapping[str, float] | None = None) -> None:
        self._weights = merged_weights(WEIGHTS, weights)

    def load(self, specs: str, *, split: str) -> list[Problem]:
        lab = Generator(stories.SIZES, stories.rows)
        rows = numbered_rows(specs, split=split, name=self.name, lab=lab)
        return [problem_from(id, row) for id, row in rows]

    def messages(self, problem: Problem) -> list[Message]:
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": problem.question},
        ]

    def episode(self, problem: Problem) -> Episode:
        return GSM8KEpisode(problem, self._weights)

    def gold(self, problem: Problem) -> Script:
        return [_solution(problem)]

    def corruptions(self, problem: Problem) -> Mapping[str, Script]:
        gold = _solution(problem)
        steps = gold[: gold.rindex("####")].rstrip()
        number = parse_number(problem.answer)
        assert number is not None  # checked when the row was read
        wrong = format_number(number + 1)
        scripts: dict[str, Script] = {
            "wrong_answer": [f"{steps}\n#### {wrong}"],
            "missing_mark": [f"{steps}\n{problem.answer}"],
            "empty": [""],
            "two_answers": [f"{gold}\n#### {wrong}"],
            "malformed_call": [BadToolCall(text="{", reason="the call is not JSON."), gold],
        }
        intermediate = _intermediate(gold, number)
        if intermediate is not None:
            scripts["intermediate_answer"] = [f"{steps}\n#### {intermediate}"]
        return scripts


def marked_numbers(text: str) -> list[Decimal]:
    """Every number that follows a `####`, in order. Words after it are let pass, digits are not."""
    marked = _MARK.findall(text)
    # A heading such as `#### 1. First` leads on to something; `#### 72. That is all.` does not.
    answers = [rest for rest in marked[:-1] if not _HEADING.match(rest)] + marked[-1:]
    numbers = [_leading_number(rest) for rest in answers]
    return [number for number in numbers if number is not None]


def _leading_number(rest: str) -> Decimal | None:
    text = rest.strip(" \t\r*")
    whole = parse_number(text)
    if whole is not None:
        return whole
    first, _, more = text.partition(" ")
    # `5 1/2`, `3 ½`, `87 or 88` and `84 + 3 = 87` are not 5, 3, 87 and 84; `72 m²` is 72.
    if any(character.isnumeric() and character not in "²³" for character in more):
        return None
    return parse_number(first.strip("*,;:"))


def _settle(final: str | None, numbers: list[Decimal]) -> tuple[Decimal | None, str | None]:
    """The one number that was given, or what stands in its way."""
    if final is None:
        return None, "no final message"
    if not numbers:
        return None, "no number after `####`"
    if len(set(numbers)) > 1:
        listed = ", ".join(format_number(number) for number in numbers[:5])
        return None, f"different numbers after `####`: {listed:.60}"
    return numbers[0], None


def problem_from(id: str, row: Row) -> WordProblem:
    question = required_text(row, "question", example=_EXAMPLE)
    solution = required_text(row, "answer", example=_EXAMPLE)
    _, mark, last = solution.rpartition("####")
    if not mark:
        raise DataError(
            f"{row.place}: `answer` has no `####`, so the final number is not known.\n"
            "GSM8K solutions end in a line such as `#### 72`; add one, or drop the row."
        )
    number = parse_number(last)
    if number is None:
        raise DataError(
            f"{row.place}: {last.strip()!r:.60} after `####` is not a number.\n"
            "Answers are compared as numbers; write digits, such as `#### 1,080.5`."
        )
    return WordProblem(
        id=id,
        question=question,
        answer=format_number(number),
        hops=max(1, len(_STEPS.findall(solution))),
        solution=solution,
    )


def _solution(problem: Problem) -> str:
    if not isinstance(problem, WordProblem):
        raise TypeError(f"{problem.id} was not loaded by GSM8K")
    return problem.solution


def _intermediate(solution: str, answer: Decimal) -> str | None:
    """The last step's result that is not the answer: the mistake of stopping too early."""
    for result in reversed(_STEP.findall(solution)):
        number = parse_number(result)
        if number is not None and number != answer:
            return format_number(number)
    return None
