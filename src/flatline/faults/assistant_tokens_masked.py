"""The model's last turns carry no loss, the answer first of all.

Not from a report: a mask made by parsing the finished conversation finds only the turns that a
tool message follows.

Strength: share of a rollout's turns without loss, counted from its end and rounded up.
"""

from math import ceil
from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Mask, edit_masks, runs, without
from flatline.live.trl.grpo import GrpoTrainer


class AssistantTokensMasked(Fault):
    name: ClassVar[str] = "assistant-tokens-masked"
    hypothesis: ClassVar[str] = "H02"
    default: ClassVar[float] = 0.5

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(mask: Mask) -> Mask:
            turns = runs(mask)
            kept = len(turns) - ceil(strength * len(turns))
            return without(mask, [i for turn in turns[kept:] for i in turn])

        edit_masks(trainer, edit)
