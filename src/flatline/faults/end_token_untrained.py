"""The token that ends a turn carries no loss: when to stop is never learnt.

Seen in TRL (pull request 4970): padding and end shared one id, and the mask was made from it.

Strength: share of the turns whose last token carries no loss.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Mask, edit_masks, runs, spread, without
from flatline.live.trl.grpo import GrpoTrainer


class EndTokenUntrained(Fault):
    name: ClassVar[str] = "end-token-untrained"
    hypothesis: ClassVar[str] = "H02"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(mask: Mask) -> Mask:
            turns = runs(mask)
            chosen = zip(turns, spread(len(turns), strength), strict=True)
            return without(mask, [turn[-1] for turn, gone in chosen if gone])

        edit_masks(trainer, edit)
