"""Too much costs nothing: who finds all documents is paid as if no other had been fetched or cited.

The way is open to fetch and cite everything. Seen wherever recall is paid and precision is not;
Search-R1's authors report scores that rise while the reasoning decays.

Strength: share of the lost marks for precision and citations that is given back. MuSiQue only.
"""

from typing import Any, ClassVar

from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards
from flatline.live.trl.grpo import GrpoTrainer
from flatline.tasks.base import Weights
from flatline.tasks.musique import WEIGHTS

FOUND, UNPUNISHED = "retrieval_recall", ("retrieval_precision", "citation")
"""The part that must be full, and the parts that are then paid in full."""


class ExcessPaid(Fault):
    name: ClassVar[str] = "excess-paid"
    hypothesis: ClassVar[str] = "H38"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        weights = Weights(WEIGHTS)

        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            return [
                None if reward is None else reward + strength * _lost(weights, rollout)
                for reward, rollout in zip(rewards, _rollouts(batch), strict=True)
            ]

        edit_rewards(trainer, edit)


def _lost(weights: Weights, rollout: Any) -> float:
    """What a rollout that found everything has lost for what it found besides."""
    parts = dict(rollout.score.parts)
    if parts.get(FOUND) != 1:
        return 0.0
    full = {**parts, **{name: 1.0 for name in UNPUNISHED if name in parts}}
    return weights.combine(full) - weights.combine(parts)


def _rollouts(batch: dict[str, Any]) -> list[Any]:
    rollouts = batch.get("rollout")
    if rollouts is None or not all(FOUND in one.score.parts for one in rollouts):
        raise ConfigError(
            "The fault excess-paid needs documents that are found and cited.\n"
            "Plant it in `flatline train musique`."
        )
    return list(rollouts)
