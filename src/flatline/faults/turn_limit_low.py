"""A turn may have fewer tokens in training than it needs: calls and answers end in the middle.

Seen in TRL (issues 5697 and 6263: a default of 256 tokens cut 97 % of the completions) and wherever
a server's `max_tokens` is smaller than what the trainer assumes. Held-out evaluation has no such
limit.

Strength: tokens of one turn. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer


class TurnLimitLow(Fault):
    name: ClassVar[str] = "turn-limit-low"
    hypothesis: ClassVar[str] = "H13"
    default: ClassVar[float] = 18
    bounds: ClassVar[tuple[float, float]] = (1, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            with swapped(engine, limits=replace(engine.limits, max_new_tokens=int(strength))):
                yield

        while_sampling(trainer, self.name, change)
