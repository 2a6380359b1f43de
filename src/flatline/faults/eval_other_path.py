"""Training plays by other rules than evaluation: fewer turns.

What evaluation measures is then never practised, and what is practised is cut short. Seen where the
two have an environment each, with its own limits: one project noted 22 % right in evaluation and
none in training.

Strength: turns of an episode in training. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer


class EvalOtherPath(Fault):
    name: ClassVar[str] = "eval-other-path"
    hypothesis: ClassVar[str] = "H08"
    default: ClassVar[float] = 2
    bounds: ClassVar[tuple[float, float]] = (1, 1000)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            with swapped(engine, limits=replace(engine.limits, max_turns=int(strength))):
                yield

        while_sampling(trainer, self.name, change)
