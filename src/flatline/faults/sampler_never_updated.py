"""The sampler keeps the weights that it started with.

Trained weights never reach it: rollouts are those of the first policy for ever. The weights do
move, and held-out evaluation, which looks at them, may even improve; the training curve stays flat.
Seen where the names of merged weights do not match those of the server, or where the delivery is
skipped on a condition that always holds (TRL issues 2698, 3679).

Strength: none; no delivery ever arrives. Needs flatline's own sampler.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler_every_n import deliver_every
from flatline.live.trl.grpo import GrpoTrainer


class SamplerNeverUpdated(Fault):
    name: ClassVar[str] = "sampler-never-updated"
    hypothesis: ClassVar[str] = "H06"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        deliver_every(trainer, self.name, steps=0)
