"""Tool output carries loss as if the model had written it.

The gradient copies or suppresses retrieved text, and the model's own tokens are a small part of it.
Seen in verifiers (issue 59); Search-R1 (arXiv 2503.09516) reports that masking retrieved tokens is
needed for stable training.

Strength: share of the tokens of tools and template that carry loss.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Mask, edit_masks, needs_turns, spread
from flatline.live.trl.grpo import GrpoTrainer


class ToolTokensTrained(Fault):
    name: ClassVar[str] = "tool-tokens-trained"
    hypothesis: ClassVar[str] = "H02"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        def edit(mask: Mask) -> Mask:
            return [
                value or int(also)
                for value, also in zip(mask, spread(len(mask), strength), strict=True)
            ]

        edit_masks(trainer, edit)
