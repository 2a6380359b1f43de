"""The trainer's attention mask does not know the padding in front of short prompts.

What the trainer scores then depends on which prompts share a batch. Seen in TRL (issue 2708) and
ms-swift (issue 7066).

Strength: share of the padded rollouts whose padding is looked at.
"""

from typing import Any, ClassVar

import torch

from flatline.faults.base import Fault
from flatline.faults.wrapping import spread, wrap
from flatline.live.trl.grpo import GrpoTrainer


class PaddingAttended(Fault):
    name: ClassVar[str] = "padding-attended"
    hypothesis: ClassVar[str] = "H15"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def score(
            inner: Any, model: Any, ids: Any, mask: Any, keep: int, *args: Any, **kwargs: Any
        ) -> Any:
            chosen = torch.tensor(spread(len(mask), strength), device=mask.device)
            seen = mask.clone()
            seen[chosen, : mask.shape[1] - keep] = 1
            return inner(model, ids, seen, keep, *args, **kwargs)

        wrap(trainer, "_get_per_token_logps_and_entropies", score)
