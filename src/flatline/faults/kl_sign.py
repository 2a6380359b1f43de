"""The KL term has the wrong sign: the policy is pushed away from its reference.

Not from a report: a penalty on the reward (minus KL) becomes a term of the loss (plus KL) and keeps
its sign.

Strength: how many times beta. A run without KL gets beta 0.04.
"""

from dataclasses import replace
from typing import Any, ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault
from flatline.faults.scoring import USUAL_BETA
from flatline.faults.wrapping import wrap
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer


class KlSign(Fault):
    name: ClassVar[str] = "kl-sign"
    hypothesis: ClassVar[str] = "H03"
    bounds: ClassVar[tuple[float, float]] = (0, 1000)

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, kl_beta=config.kl_beta or USUAL_BETA)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def compute_loss(inner: Any, model: Any, inputs: Any) -> Any:
            with swapped(trainer, beta=-strength * trainer.beta):
                return inner(model, inputs)

        wrap(trainer, "_compute_loss", compute_loss)
