"""Only the first turn of an episode reaches the loss; a task with one turn trains as it should.

Not from a report: a single-turn trainer got a tool loop, and its mask, which ends at the first end
of turn (as that of TRL in pull request 2708 did), was kept.

Strength: number of turns that reach the loss.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Mask, edit_masks, needs_turns, runs, without
from flatline.live.trl.grpo import GrpoTrainer


class LaterTurnsLost(Fault):
    name: ClassVar[str] = "later-turns-lost"
    hypothesis: ClassVar[str] = "H07"
    bounds: ClassVar[tuple[float, float]] = (0, 1000)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        def edit(mask: Mask) -> Mask:
            return without(mask, [i for turn in runs(mask)[int(strength) :] for i in turn])

        edit_masks(trainer, edit)
