"""The entropy bonus has the wrong sign: every step makes the policy surer of what it does.

Not from a report: the bonus is subtracted from a loss, or added to an objective, and the two are
easily mixed up. Policies also lose their entropy without it (DAPO; arXiv 2505.22617).

Strength: weight of the entropy in the loss.
"""

from typing import ClassVar

from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.live.trl.grpo import GrpoTrainer


class EntropyPenalised(Fault):
    name: ClassVar[str] = "entropy-penalised"
    hypothesis: ClassVar[str] = "H30"
    default: ClassVar[float] = 0.3
    bounds: ClassVar[tuple[float, float]] = (0, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        if not hasattr(trainer, "_entropy_bonus_enabled"):
            raise ConfigError(
                f"A {type(trainer).__name__} has no entropy bonus, whose sign this fault changes.\n"
                "Faults are planted in a GRPOTrainer of TRL 1.16 (see constraints.txt)."
            )
        trainer.entropy_coef = -strength
        trainer._entropy_bonus_enabled = strength != 0
