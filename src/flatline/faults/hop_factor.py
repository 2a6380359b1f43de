"""The reward is multiplied by half the hops, and nothing takes the factor out of the advantages.

Seen in the seeds' own project (`reward * n_hops / 2`). There a division by the group's spread
cancels it in the update; here advantages are not divided, as Dr. GRPO advises.

Strength: how much of the factor; 1 is half the hops, 0 none. A trainer that is already built keeps
its scaling.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault
from flatline.faults.sorted_with_hop_factor import multiply_by_hops
from flatline.live.trl.grpo import GrpoTrainer


class HopFactor(Fault):
    name: ClassVar[str] = "hop-factor"
    hypothesis: ClassVar[str] = "H40"

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, scale_rewards="none")

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        multiply_by_hops(trainer, strength, name=self.name)
