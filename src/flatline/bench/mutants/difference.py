"""In what a run with a change differs from the one without: nothing, rounding, a scale, or more.

The stage in which a mutant goes wrong is not judged. It is the first stage, in the order of a step,
whose value is another one than without the change, bit by bit, from the same seed: until then both
runs were the same, so this is what the change changed.
"""

from enum import StrEnum
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from flatline.bench.mutants.heard import DEALT, Array, Heard, Step, Value
from flatline.spec import STAGES

ROUNDING = 1e-5
"""Share of its size by which float32 may carry a gradient or a loss away."""
PARALLEL = 1e-4
"""Share of a gradient that may be left beside its multiple of the other, for a mere scale."""
SAME_MOVE = 1e-2
"""Share by which the weights may move otherwise, since Adam magnifies the rounding of gradients
near 0."""
_ORDER = tuple(
    part for stage in STAGES for part in ((DEALT, stage) if stage == "log-probs" else (stage,))
)
"""As a step makes them. What is dealt out to passes is of the stage `rows`."""
_DISCRETE = ("rows", "prompts", "completions", "mask")
"""What is the same or is not. In which order a step adds up the rows of its passes is not among
them: where that matters, the gradient is another."""


class Effect(StrEnum):
    STOPS = "stops"
    """An exception tells the user."""
    HANGS = "hangs"
    SAME = "same"
    """Every stage and the log are equal to the last bit."""
    ELSEWHERE = "same here, changes elsewhere"
    """The same training in two steps of its own setting, and another in a setting that was run as
    well, or some steps later: the code is wrong, and those two steps do not show it."""
    LOG = "log only"
    """The training is the same, and what is logged is not."""
    ROUNDING = "rounding"
    """Other bits, within what float32 may round."""
    SCALE = "scale"
    """The loss has another size, and clipping or Adam takes it away: the weights move the same."""
    ASKED = "asks otherwise"
    """The script passes other arguments: another training is asked for, and done as asked."""
    CHANGES = "changes"
    """It runs without a word, and trains otherwise."""


class Difference(NamedTuple):
    """What a change does."""

    effect: Effect
    stage: str = ""
    """The first whose value is another one; empty where none is."""
    step: int = 0
    """In which step, from 1."""
    gradient: float | None = None
    """Length of the gradient in that step, in lengths of the other."""
    beside: float | None = None
    """Share of that gradient which does not point where the other does."""

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"effect": self.effect.value}
        if not self.stage:
            return told
        numbers = {"gradient": self.gradient, "beside": self.beside}
        known = {
            name: float(f"{value:.4g}")
            for name, value in numbers.items()
            if value is not None and np.isfinite(value)
        }
        return {**told, "stage": self.stage, "step": self.step, **known}


def difference(reference: Heard, found: Heard, *, asks: bool = False) -> Difference:
    """How a run that came to its end differs from the one without the change, which may be one of
    the code that asks for a training."""
    first = _first(reference, found)
    otherwise = asks and reference.asked != found.asked
    if first is None and otherwise:
        return Difference(Effect.ASKED)
    if first is None:
        same = reference.log == found.log
        return Difference(Effect.SAME if same else Effect.LOG)
    at, stage = first
    pairs = list(zip(reference.steps, found.steps, strict=False))
    length = beside = None
    if at < len(pairs):
        length, beside = _direction(*(_joined(step, "gradient") for step in pairs[at]))
        stage = _refined(stage, *pairs[at])
    effect = Effect.ASKED if otherwise else _size(reference, found)
    return Difference(effect, stage, at + 1, length, beside)


def _first(reference: Heard, found: Heard) -> tuple[int, str] | None:
    nothing: Step = {}
    pairs = zip_longest(reference.steps, found.steps, fillvalue=nothing)
    for at, (one, other) in enumerate(pairs):
        for stage in _ORDER:
            if _digests(one, stage) != _digests(other, stage):
                return at, "rows" if stage == DEALT else stage
    return None


def _digests(step: Step, stage: str) -> list[str]:
    return [value.digest for value in step.get(stage, ())]


def _refined(stage: str, one: Step, other: Step) -> str:
    """Where tokens of one row are out of proportion it is the ratio or the KL, and else the loss.

    What was heard is the derivative of the loss by each token's log-prob, as the specification
    tells the two stages apart.
    """
    if stage != "loss":
        return stage
    for a, b in zip(one["loss"], other.get("loss", ()), strict=False):
        if not _rows_in_proportion(a, b):
            return "ratio and KL"
    return stage


def _rows_in_proportion(one: Value, other: Value) -> bool:
    """Whether each row is a multiple of the other's, be it a negative one or 0."""
    a_BT, b_BT = one.numbers, other.numbers
    if a_BT.shape != b_BT.shape or a_BT.ndim != 2:
        return True
    pairs = zip(a_BT, b_BT, strict=True)
    return all(
        not b_T.any() or min(_direction(a_T, b_T)[1], _direction(a_T, -b_T)[1]) <= PARALLEL
        for a_T, b_T in pairs
    )


def _size(reference: Heard, found: Heard) -> Effect:
    """How much of a difference it is."""
    if len(reference.steps) != len(found.steps):
        return Effect.CHANGES
    pairs = list(zip(reference.steps, found.steps, strict=True))
    if any(_other(a, b, stage) for a, b in pairs for stage in _DISCRETE):
        return Effect.CHANGES
    moves = max(_apart(_joined(a, "update"), _joined(b, "update")) for a, b in pairs)
    if moves > SAME_MOVE:
        return Effect.CHANGES
    reordered = any(_digests(a, DEALT) != _digests(b, DEALT) for a, b in pairs)
    stages = ("gradient",) if reordered else ("advantages", "loss", "gradient")
    apart = max(_apart(_joined(a, s), _joined(b, s)) for a, b in pairs for s in stages)
    if apart <= ROUNDING:
        return Effect.ROUNDING
    beside = max(_direction(_joined(a, "gradient"), _joined(b, "gradient"))[1] for a, b in pairs)
    return Effect.SCALE if beside <= PARALLEL else Effect.CHANGES


def _other(one: Step, other: Step, stage: str) -> bool:
    """Whether ids or masks are others. A mask is the same in whole numbers and in fractions."""
    if _digests(one, stage) == _digests(other, stage):
        return False
    a, b = (step.get(stage, []) for step in (one, other))
    numbers = len(a) == len(b) and all(value.numbers.size for value in (*a, *b))
    return not numbers or any(
        not np.array_equal(x.numbers, y.numbers) for x, y in zip(a, b, strict=True)
    )


def _joined(step: Step, stage: str) -> Array:
    values = [value.numbers.reshape(-1) for value in step.get(stage, ())]
    return np.concatenate(values) if values else np.zeros(0)


def _apart(one: Array, other: Array) -> float:
    """Distance in lengths of the first; infinite where they have no common shape."""
    if one.shape != other.shape:
        return float("inf")
    size = float(np.linalg.norm(one))
    gap = float(np.linalg.norm(other - one))
    if not np.isfinite(gap):
        return float("inf")
    return gap / size if size else (0.0 if not gap else float("inf"))


def _direction(one: Array, other: Array) -> tuple[float, float]:
    """Length of the second in lengths of the first, and the share of it that points elsewhere."""
    if one.shape != other.shape or not np.isfinite(other).all():
        return float("inf"), 1.0
    size, length = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if not size or not length:
        same = size == length
        return (1.0, 0.0) if same else (0.0 if size else float("inf"), 1.0)
    along = float(one @ other) / size
    if along < 0:
        return length / size, 1.0
    return length / size, float(np.linalg.norm(other - along * one / size)) / length
