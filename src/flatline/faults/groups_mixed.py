"""Rewards are given to other rollouts of the batch before groups are formed.

Each group then holds rewards of several prompts, and few belong to the completion they stand at: a
batch is laid out prompt by prompt on one side and sample by sample on the other. Groups that were
not whole were seen in TRL (issue 3098) and d1 (issue 19).

Strength: share of the rollouts whose rewards are exchanged.
"""

from typing import Any, ClassVar

from torch import Tensor

from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import spread, wrap
from flatline.live.trl.grpo import GrpoTrainer


class GroupsMixed(Fault):
    name: ClassVar[str] = "groups-mixed"
    hypothesis: ClassVar[str] = "H33"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        size = trainer.num_generations
        if trainer.args.generation_batch_size < 2 * size:
            raise ConfigError(
                "A step has one prompt, so there are no groups to mix.\nRaise --batch-size."
            )

        def calculate(inner: Any, *args: Any, **kwargs: Any) -> Tensor:
            rewards_BF: Tensor = inner(*args, **kwargs)
            marks = spread(len(rewards_BF), strength)
            taken = [i for i, mark in enumerate(marks) if mark]
            mixed_BF = rewards_BF.clone()
            mixed_BF[taken] = rewards_BF[sorted(taken, key=lambda i: (i % size, i // size))]
            return mixed_BF

        wrap(trainer, "_calculate_rewards", calculate)
