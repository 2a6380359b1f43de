"""The sampler gets new weights every so many steps only and plays with old ones in between.

Seen in verifiers, which samples one batch ahead unless told otherwise, and in every asynchronous
set-up.

Strength: optimizer steps from one delivery to the next. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import policy, while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.weights import WeightCopy


class SamplerEveryN(Fault):
    name: ClassVar[str] = "sampler-every-n"
    hypothesis: ClassVar[str] = "H17"
    default: ClassVar[float] = 8
    bounds: ClassVar[tuple[float, float]] = (1, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        deliver_every(trainer, self.name, steps=int(strength))


def deliver_every(trainer: GrpoTrainer, name: str, *, steps: int) -> None:
    """Sample from a copy that new weights reach every so many steps; 0: never."""
    stale = WeightCopy(policy(trainer))

    @contextmanager
    def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
        step = trainer.state.global_step
        if steps and step % steps == 0:
            stale.deliver(policy(trainer))
            stale.version = step
        with swapped(engine, _weights=stale):
            yield

    while_sampling(trainer, name, change)
