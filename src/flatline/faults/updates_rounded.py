"""Trained weights keep few digits: an update smaller than the last of them is lost.

Seen where weights are trained in pure bf16 without a copy in fp32: at a rate of 1e-6 one step moves
2 % of them.

Strength: bits behind the leading one that a trained weight keeps after each step; bf16 has 7, but
the lab's rates are so high that only fewer lose anything.
"""

from typing import Any, ClassVar

import torch

from flatline.faults.base import Fault
from flatline.faults.rounding import rounded
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class UpdatesRounded(Fault):
    name: ClassVar[str] = "updates-rounded"
    hypothesis: ClassVar[str] = "H25"
    default: ClassVar[float] = 1
    bounds: ClassVar[tuple[float, float]] = (0, 23)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        before: dict[int, torch.Tensor] = {}

        def remember(optimizer: Any, *_: Any) -> None:
            before.update({id(weight): weight.detach().clone() for weight in _weights(optimizer)})

        def lose(optimizer: Any, *_: Any) -> None:
            with torch.no_grad():
                for weight in _weights(optimizer):
                    old = before.pop(id(weight))
                    # The start keeps its digits: only updates are lost.
                    weight.copy_(old + (rounded(weight, strength) - rounded(old, strength)))

        def create(inner: Any, *args: Any, **kwargs: Any) -> Any:
            optimizer = inner(*args, **kwargs)
            optimizer.register_step_pre_hook(remember)
            optimizer.register_step_post_hook(lose)
            return optimizer

        wrap(trainer, "create_optimizer", create)


def _weights(optimizer: Any) -> list[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
