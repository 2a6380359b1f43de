"""Toolmath: a few dependent steps of arithmetic with a `calculate` tool.

A row, as made here and as read from a JSONL file:

    {"question": "a = 47 * 8; b = a - 129; c = b + 36. What is c?", "answer": "283",
     "steps": [{"expression": "47 * 8", "value": 376}, {"expression": "376 - 129", "value": 247},
               {"expression": "247 + 36", "value": 283}]}

The multi-turn control: what a model learns here needs the tool's replies and nothing else.

Parts of the reward:
    exact_match  the number in `<answer>` is the gold number; two different answers are none
    progress     share of the steps whose value a tool call brought back
    format       a bare `<answer>`, after a `<think>` at most; no call was malformed
"""

import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar
from zlib import crc32

from flatline.errors import DataError
from flatline.tasks.arithmetic import ExpressionError, evaluate, show
from flatline.tasks.base import (
    BadToolCall,
    Episode,
    Message,
    Observation,
    Problem,
    Score,
    Script,
    Task,
    Tool,
    ToolCall,
    Weights,
)
from flatline.tasks.datasets import Row
from flatline.tasks.numbered import Generator, numbered_rows, required_text
from flatline.tasks.numbers import format_number, parse_number
from flatline.tasks.scoring import after_thought
from flatline.tasks.weights import merged_weights

SYSTEM = "Call calculate for every step, then write <answer>number</answer>."
WEIGHTS = {"exact_match": 1.0, "progress": 0.5, "format": 0.1}
CALCULATE = Tool(
    name="calculate",
    description="Works out an arithmetic expression with + - * / and parentheses, exactly.",
    parameters={"expression": {"type": "string", "description": "Such as 12 * (3 + 4)."}},
)

SIZES: Mapping[str, int] = {"train": 8192, "validation": 1024, "test": 1024}
HIGHEST = 9999
"""No intermediate result is larger, and none is negative."""

_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_EXAMPLE = (
    '{"question": "a = 2 + 3; b = a * 4. What is b?", "answer": "20", "steps": '
    '[{"expression": "2 + 3", "value": 5}, {"expression": "5 * 4", "value": 20}]}'
)
_BARE = re.compile(r"\s*<answer>\s*-?[0-9][0-9,]*(?:\.[0-9]+)?\s*</answer>\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One calculation with its numbers filled in."""

    expression: str
    """Such as `376 - 129`."""
    value: Fraction
    """Its exact result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProblem(Problem):
    """A chain of calculations."""

    steps: tuple[Step, ...]
    """In order; the last one gives the answer."""


class ToolMathEpisode(Episode):
    """One play: calculations, then an answer."""

    tools: ClassVar[tuple[Tool, ...]] = (CALCULATE,)

    def __init__(self, problem: StepProblem, weights: Weights) -> None:
        super().__init__(problem)
        self._steps = Counter(step.value for step in problem.steps)
        self._results: Counter[Fraction] = Counter()
        self._weights = weights

    def _run(self, call: ToolCall) -> Observation:
        try:
            value = evaluate(call.arguments["expression"])
        except ExpressionError as error:
            self.events["tool_errors"] += 1
            return Observation(text=f"Error: {error}")
        self._results[value] += 1
        return Observation(text=show(value))

    def score(self, final: str | None) -> Score:
        answer, note = read_answer(final)
        # Assigned, not added: scoring twice must not count twice.
        self.events["malformed_answers"] = int(final is not None and answer is None)
        bare = final is not None and _BARE.fullmatch(after_thought(final)) is not None
        well_formed = bare and not self.events["malformed_calls"]
        # Two steps with the same value need two results: a step left out must cost something.
        reached = (self._steps & self._results).total() / self._steps.total()
        parts = {
            "exact_match": float(answer == parse_number(self.problem.answer)),
            "progress": reached,
            "format": float(well_formed and answer is not None),
        }
        if note is None and not bare:
            note = "something besides <think> and <answer>number</answer>"
        notes = () if note is None else (note,)
        return Score(reward=self._weights.combine(parts), parts=parts, notes=notes)


class ToolMath(Task):
    """Chains of calculations: the simple multi-turn control."""

    name: ClassVar[str] = "toolmath"
    tools: ClassVar[tuple[Tool, ...]] = (CALCULATE,)

    def __init__(self, *, weights: Mapping[str, float] | None = None) -> None:
        self._weights = merged_weights(WEIGHTS, weights)

    def load(self, specs: str, *, split: str) -> list[Problem]:
        lab = Generator(SIZES, rows)
        found = numbered_rows(specs, split=split, name=self.name, lab=lab)
        return [problem_from(id, row) for id, row in found]

    def messages(self, problem: Problem) -> list[Message]:
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": problem.question},
        ]

    def episode(self, problem: Problem) -> Episode:
        return ToolMathEpisode(_chain(problem), self._weights)

    def gold(self, problem: Problem) -> Script:
        return [*_calls(_chain(problem).steps), f"<answer>{problem.answer}</answer>"]

    def corruptions(self, problem: Problem) -> Mapping[str, Script]:
        steps = _chain(problem).steps
        calls, final = _calls(steps), f"<answer>{problem.answer}</answer>"
        number = parse_number(problem.answer)
        assert number is not None  # checked when the row was read
        wrong = f"<answer>{format_number(number + 1)}</answer>"
        scripts: dict[str, Script] = {
            "wrong_answer": [*calls, wrong],
            "skipped_step": [*calls[:-1], final],
            "missing_tag": [*calls, problem.answer],
            "two_answers": [*calls, final + wrong],
            "empty": [""],
            "malformed_call": [
                BadToolCall(text="{", reason="the call is not JSON."),
                *calls,
                final,
            ],
        }
        bridges = [step.value for step in steps if step.value != steps[-1].value]
        if bridges:
            scripts["bridge_answer"] = [*calls, f"<answer>{show(bridges[-1])}</answer>"]
        return scripts


def read_answer(final: str | None) -> tuple[Decimal | None, str | None]:
    """The number a final message gives, or what stands in its way."""
    if final is None:
        return None, "no final message"
    given = _tagged(after_thought(final))
    if not given:
        return None, "no <answer>number</answer>"
    numbers = [parse_number(text) for text in given]
    if None in numbers:
        return None, f"<answer> holds no number: {given[numbers.index(None)]!r:.60}"
    if len(set(numbers)) > 1:
        return None, "different numbers in <answer>"
    return numbers[0], None


def _tagged(text: str) -> list[str]:
    """What stands in each `<answer>...</answer>`; linear in the text, whatever a model wrote."""
    pieces = [piece.partition("</answer>") for piece in text.split("<answer>")[1:]]
    return [inside for inside, end, _ in pieces if end]


def rows(split: str, start: int, stop: int) -> list[dict[str, Any]]:
    """Built-in rows `start` to `stop` of a split. A row depends on its split and index alone."""
    return [row(split, index) for index in range(start, stop)]


def row(split: str, index: int) -> dict[str, Any]:
    """One problem whose text belongs to the split."""
    rng = random.Random(f"toolmath-{split}-{index}")
    while True:
        question, steps = _draw(rng)
        if split_of(question) == split:
            answer = str(steps[-1]["value"])
            return {"question": question, "answer": answer, "steps": steps}


def split_of(question: str) -> str:
    """Which split a text belongs to; the text alone decides, so no two splits can share one."""
    place = crc32(question.encode()) % 10
    return "train" if place < 8 else "validation" if place == 8 else "test"


def _draw(rng: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A chain of two to four steps, as text and with the numbers filled in."""
    names: dict[str, int] = {}
    lines: list[str] = []
    steps: list[dict[str, Any]] = []
    for name in "abcd"[: rng.randint(2, 4)]:
        left = list(names)[-1] if names else str(rng.randint(10, 99))
        sign, right = _right_side(rng, names, left)
        filled = f"{names.get(left, left)} {sign} {names.get(right, right)}"
        names[name] = _result(sign, names.get(left, left), names.get(right, right))
        lines.append(f"{name} = {left} {sign} {right}")
        steps.append({"expression": filled, "value": names[name]})
    return f"{'; '.join(lines)}. What is {list(names)[-1]}?", steps


def _right_side(rng: random.Random, names: Mapping[str, int], left: str) -> tuple[str, str]:
    """An operation and its right operand that keep the result in range."""
    earlier = list(names)[:-1]
    while True:
        sign = rng.choice("+-*")
        if earlier and rng.random() < 0.2:
            right = rng.choice(earlier)
        else:
            right = str(_constant(rng, sign, first=not names))
        if 0 <= _result(sign, names.get(left, left), names.get(right, right)) <= HIGHEST:
            return sign, right


def _result(sign: str, left: int | str, right: int | str) -> int:
    return _OPERATIONS[sign](int(left), int(right))


def _constant(rng: random.Random, sign: str, *, first: bool) -> int:
    if sign == "*" and rng.random() < 0.9:
        return rng.randint(2, 9)
    return rng.randint(10 if first else 2, 99)


def _calls(steps: Sequence[Step]) -> list[ToolCall]:
    return [ToolCall(name="calculate", arguments={"expression": s.expression}) for s in steps]


def _chain(problem: Problem) -> StepProblem:
    if not isinstance(problem, StepProblem):
        raise TypeError(f"{problem.id} was not loaded by toolmath")
    return problem


def problem_from(id: str, row: Row) -> StepProblem:
    question = required_text(row, "question", example=_EXAMPLE)
    answer = parse_number(required_text(row, "answer", example=_EXAMPLE))
    if answer is None:
        raise DataError(
            f"{row.place}: `answer` {row.data['answer']!r:.60} is not a number.\n"
            f"A row looks like {_EXAMPLE}; fix or drop it."
        )
    steps = _steps(row)
    if steps[-1].value != Fraction(answer):
        raise DataError(
            f"{row.place}: the last step gives {show(steps[-1].value)}, but `answer` is "
            f"{format_number(answer)}.\nNo answer could earn the maximum; fix or drop the row."
        )
    return StepProblem(
        id=id,
        question=question,
        answer=format_number(answer),
        hops=len(steps),
        steps=steps,
    )


def _steps(row: Row) -> tuple[Step, ...]:
    given = row.data.get("steps")
    if not isinstance(given, list) or not given:
        raise DataError(
            f"{row.place}: `steps` is missing or empty, so progress cannot be scored.\n"
            f"A row looks like {_EXAMPLE}; fix or drop it."
        )
    return tuple(_step(row, index, step) for index, step in enumerate(given))


def _step(row: Row, index: int, step: Any) -> Step:
    expression = step.get("expression") if isinstance(step, dict) else None
    stated = parse_number(str(step["value"])) if expression and "value" in step else None
    if not isinstance(expression, str) or stated is None:
        raise DataError(
            f"{row.place}: step {index} is {step!r:.80}.\n"
            'A step looks like {"expression": "47 * 8", "value": 376}; fix or drop the row.'
        )
    try:
        value = evaluate(expression)
    except ExpressionError as error:
        raise DataError(
            f"{row.place}: step {index}, {expression!r:.80}: {error}\nFix or drop the row."
        ) from error
    if value != Fraction(stated):
        raise DataError(
            f"{row.place}: step {index} says {expression} is {step['value']}, but it is "
            f"{show(value)}.\nFix or drop the row."
        )
    return Step(expression=expression, value=value)
