"""Inside a group rewards differ by crumbs only, and the division by their spread blows them up.

The reward hardly tells good from bad; what is left is noise in the third decimal. Divided by the
group's standard deviation it has full weight. Seen as a bias in Dr. GRPO (arXiv 2503.20783).

Strength: standard deviation of the crumbs.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.reward_noise import noise_of
from flatline.faults.wrapping import Rewards, edit_rewards
from flatline.faults.zero_variance import PASSED
from flatline.live.trl.grpo import GrpoTrainer


class AdvantageNoise(Fault):
    name: ClassVar[str] = "advantage-noise"
    hypothesis: ClassVar[str] = "H01"
    default: ClassVar[float] = 0.003
    bounds: ClassVar[tuple[float, float]] = (0, 1)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            crumbs = noise_of(trainer, batch, len(rewards)) * strength
            return [
                None if reward is None else float(reward > PASSED) + float(crumb)
                for reward, crumb in zip(rewards, crumbs, strict=True)
            ]

        edit_rewards(trainer, edit)
