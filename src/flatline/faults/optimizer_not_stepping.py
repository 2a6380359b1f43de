"""The optimizer holds other tensors than those that get gradients: it steps, and nothing moves.

Not from a report: the optimizer is made before the adapter, or before the model is wrapped.

Strength: share of the trainable tensors that the optimizer has lost.
"""

from typing import Any, ClassVar

from torch import nn

from flatline.faults.base import Fault
from flatline.faults.wrapping import spread, wrap
from flatline.live.trl.grpo import GrpoTrainer


class OptimizerNotStepping(Fault):
    name: ClassVar[str] = "optimizer-not-stepping"
    hypothesis: ClassVar[str] = "H26"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def create(inner: Any, *args: Any, **kwargs: Any) -> Any:
            optimizer = inner(*args, **kwargs)
            for group in optimizer.param_groups:
                tensors = zip(group["params"], spread(len(group["params"]), strength), strict=True)
                group["params"] = [_stranger(p) if lost else p for p, lost in tensors]
            return optimizer

        wrap(trainer, "create_optimizer", create)


def _stranger(parameter: nn.Parameter) -> nn.Parameter:
    """The same values in a tensor that no model holds."""
    return nn.Parameter(parameter.detach().clone())
