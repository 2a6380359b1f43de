"""A rollout counts by its length: its advantage is multiplied by a power of it.

Token losses that are summed where they should be averaged do this. Seen as a bias of the loss in
Dr. GRPO (arXiv 2503.20783); here it is made large enough to be seen in a short run.

Strength: the power of the length, as a share of the batch's mean; -1 counts the short ones more.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class LengthWeighted(Fault):
    name: ClassVar[str] = "length-weighted"
    hypothesis: ClassVar[str] = "H35"
    default: ClassVar[float] = 3.0
    bounds: ClassVar[tuple[float, float]] = (-10, 10)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def score(inner: Any, *args: Any, **kwargs: Any) -> Any:
            output = inner(*args, **kwargs)
            mask_BT = output["completion_mask"] * output.get("tool_mask", 1)
            length_B = mask_BT.sum(dim=1).clamp(min=1).float()
            output["advantages"] = output["advantages"] * (length_B / length_B.mean()) ** strength
            return output

        wrap(trainer, "_generate_and_score_completions", score)
