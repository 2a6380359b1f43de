"""The data is sorted by hops, never shuffled, and the reward is multiplied by half the hops.

The reward curve then rises with the order of the data, whatever the policy does. Seen in the
seeds' own project: `prepare_dataset` sorts by `n_hops`, the script sets `shuffle_dataset=False`,
and the reward has a factor of `n_hops / 2`.

Strength: how much of the factor; 1 is half the hops, 0 none. The order needs `flatline train
musique`; a trainer that is already built gets the factor only.
"""

from dataclasses import replace
from typing import Any, ClassVar

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards
from flatline.live.trl.grpo import GrpoTrainer

COLUMNS = ("hops", "n_hops")


class SortedWithHopFactor(Fault):
    name: ClassVar[str] = "sorted-with-hop-factor"
    hypothesis: ClassVar[str] = "H44"

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, order="hops")

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        multiply_by_hops(trainer, strength, name=self.name)


def multiply_by_hops(trainer: GrpoTrainer, strength: float, *, name: str) -> None:
    """Let every reward grow with the hops of its problem; `name` is the fault that does so."""
    column = next((c for c in COLUMNS if c in trainer.train_dataset.column_names), None)
    if column is None:
        raise ConfigError(
            f"The fault {name} needs the hops of each problem.\n"
            "Give the training data a column `hops`."
        )

    def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
        return [
            None if reward is None else reward * (1 + strength * (n / 2 - 1))
            for reward, n in zip(rewards, batch[column], strict=True)
        ]

    edit_rewards(trainer, edit)
