"""The loss mask is shifted against the tokens.

The log-prob of a token comes from the position before it, and code that slices one of the two and
not the other is off by one: each turn loses its first token and trains the one after its end. Seen
in GPT-NeoX (pull request 1285).

Strength: tokens that the mask is shifted to the right; negative to the left.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Mask, edit_masks
from flatline.live.trl.grpo import GrpoTrainer


class MaskOffByOne(Fault):
    name: ClassVar[str] = "mask-off-by-one"
    hypothesis: ClassVar[str] = "H02"
    bounds: ClassVar[tuple[float, float]] = (-64, 64)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        by = int(strength)

        def edit(mask: Mask) -> Mask:
            n = len(mask)
            return [mask[i - by] if 0 <= i - by < n else 0 for i in range(n)]

        edit_masks(trainer, edit)
