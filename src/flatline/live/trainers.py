"""Whose trainings a checkup can hold: one adapter in a file of its own, one line in `TRAINERS`.

An adapter's `hold` gives what it holds of a trainer that is its own, and None of anybody else's; it
is told the name of the reward that says right or wrong, where the user gave one.
TRL is not in the list: it is what a trainer is taken for that none of them knows.
"""

from collections.abc import Callable
from typing import Any

from flatline.live.loop import trainer as loop
from flatline.live.protocol import Trainer
from flatline.live.tinker import training as tinker
from flatline.live.verifiers import common as verifiers
from flatline.live.verl import engine as verl

TRAINERS: tuple[Callable[[Any, str | None], Trainer | None], ...] = (
    loop.hold,
    tinker.hold,
    verifiers.hold,
    verl.hold,
)
"""Asked in this order."""


def held(trainer: Any, correct: str | None = None) -> Trainer | None:
    """What the first adapter that knows a trainer holds of it."""
    return next((found for hold in TRAINERS if (found := hold(trainer, correct)) is not None), None)
