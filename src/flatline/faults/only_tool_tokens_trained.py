"""The loss mask is upside down: tool output is trained and the model's own tokens are not.

Not from a report: a mask that means "written by the environment" meets code that reads it as
"train this".

Strength: share of the model's tokens that lose their loss; tool output always carries it.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Mask, edit_masks, needs_turns, spread
from flatline.live.trl.grpo import GrpoTrainer


class OnlyToolTokensTrained(Fault):
    name: ClassVar[str] = "only-tool-tokens-trained"
    hypothesis: ClassVar[str] = "H02"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        def edit(mask: Mask) -> Mask:
            lost = spread(len(mask), strength)
            return [int(not (value and gone)) for value, gone in zip(mask, lost, strict=True)]

        edit_masks(trainer, edit)
