"""Stories: GSM8K-shaped word problems with invented names, in the official form.

    {"question": "Velbara has 14 eggs. Velbara buys 3 boxes of 6 eggs. Velbara gives away 5 eggs.
                  How many eggs does Velbara have now?",
     "answer": "3*6 = <<3*6=18>>18\\n14+18 = <<14+18=32>>32\\n32-5 = <<32-5=27>>27\\n#### 27"}

Two to four steps; every number lies between 1 and 99. A row depends only on (seed, split, index).
"""

import random
from collections.abc import Mapping
from typing import NamedTuple

from flatline.errors import DataError
from flatline.tasks.names import fresh_names

SIZES: Mapping[str, int] = {"train": 8192, "validation": 1024, "test": 1024}
ITEMS = ("eggs", "books", "cards", "pens", "shells", "stamps")
HIGHEST = 99


class Event(NamedTuple):
    """One sentence of a story and the arithmetic behind it."""

    text: str
    steps: tuple[str, ...]
    """Calculations such as `14+18`, in order."""
    total: int
    """What the person has afterwards."""


EVENTS = {
    "finds": "{n} finds {a} {i}.",
    "loses": "{n} gives away {a} {i}.",
    "boxes": "{n} buys {a} boxes of {b} {i}.",
    "doubles": "Then {n} has {a} times as many.",
    "shares": "{n} shares them among {a} friends and keeps one share.",
    "bystander": "{m} has {a} {i}.",
}
START = "{n} has {a} {i}."
QUESTION = "How many {i} does {n} have now?"


def rows(split: str, start: int, stop: int, *, seed: int = 0) -> list[dict[str, str]]:
    """Rows `start` to `stop` of a split."""
    if split not in SIZES:
        raise DataError(
            f"The lab data has no split {split!r}. It has {', '.join(SIZES)}: write "
            "`lab,main,validation[:100]`."
        )
    return [row(split, index, seed=seed) for index in range(start, stop)]


def row(split: str, index: int, *, seed: int = 0) -> dict[str, str]:
    """One word problem with its worked solution."""
    rng = random.Random(f"stories-{seed}-{split}-{index}")
    names = fresh_names(rng, split)
    name, bystander, item = next(names), next(names), rng.choice(ITEMS)
    total = rng.randint(2, 40)
    sentences = [START.format(n=name, a=total, i=item)]
    steps: list[str] = []
    wanted = rng.choice([2, 2, 3, 3, 4])
    while len(steps) < wanted:
        event = _event(rng, total, name, bystander, item)
        sentences.append(event.text)
        steps.extend(event.steps)
        total = event.total
    sentences.append(QUESTION.format(n=name, i=item))
    return {"question": " ".join(sentences), "answer": worked(steps, total)}


def worked(steps: list[str], final: int) -> str:
    """The official layout of a solution."""
    lines = [f"{step} = <<{step}={value(step)}>>{value(step)}" for step in steps]
    return "\n".join([*lines, f"#### {final}"])


def value(step: str) -> int:
    """The result of one calculation such as `14+18`."""
    sign = sign_of(step)
    a, b = (int(number) for number in step.split(sign))
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case _:
            return a // b


def sign_of(step: str) -> str:
    return next(sign for sign in "+-*/" if sign in step)


def _event(rng: random.Random, total: int, name: str, bystander: str, item: str) -> Event:
    """A random event that keeps every number between 1 and 99."""
    while True:
        kind = rng.choice(list(EVENTS))
        a, b = rng.randint(2, 20), rng.randint(2, 9)
        if kind in ("boxes", "doubles", "shares"):
            a = rng.randint(2, 5)
        steps, after = _effect(kind, total, a, b)
        exact = kind != "shares" or total % a == 0
        if exact and 1 <= after <= HIGHEST:
            text = EVENTS[kind].format(n=name, m=bystander, a=a, b=b, i=item)
            return Event(text, steps, after)


def _effect(kind: str, total: int, a: int, b: int) -> tuple[tuple[str, ...], int]:
    match kind:
        case "finds":
            return (f"{total}+{a}",), total + a
        case "loses":
            return (f"{total}-{a}",), total - a
        case "boxes":
            return (f"{a}*{b}", f"{total}+{a * b}"), total + a * b
        case "doubles":
            return (f"{total}*{a}",), total * a
        case "shares":
            return (f"{total}/{a}",), total // a
        case _:
            return (), total
