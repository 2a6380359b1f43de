"""Almost every rollout earns the same: the reward asks for less than the policy already does.

Groups of equal rewards have no advantages, and only the rare odd one moves a weight. Seen with
problems that are far too easy or too hard (DAPO, arXiv 2503.14476).

Strength: reward above which a rollout passes and earns 1; all others earn 0.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards
from flatline.live.trl.grpo import GrpoTrainer

PASSED = 0.1
"""A reward that nearly every rollout of the lab policy reaches."""


class ZeroVariance(Fault):
    name: ClassVar[str] = "zero-variance"
    hypothesis: ClassVar[str] = "H32"
    default: ClassVar[float] = PASSED
    bounds: ClassVar[tuple[float, float]] = (-1000, 1000)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            return [None if reward is None else float(reward > strength) for reward in rewards]

        edit_rewards(trainer, edit)
