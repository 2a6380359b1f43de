"""A second reward fights the first: short completions are paid for, and the task needs searches.

The easy part owns the differences inside a group, and the policy earns it by giving up the hard
one. Seen in a milder form in the seeds' own project: six weighted parts, recall against precision.

Strength: weight of the reward for brevity, which falls from 1 to 0 over 256 tokens.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from flatline.faults.base import Fault
from flatline.live.trl.grpo import GrpoTrainer

LONG = 256
"""Tokens at which nothing is left of the reward."""


class RewardConflict(Fault):
    name: ClassVar[str] = "reward-conflict"
    hypothesis: ClassVar[str] = "H05"
    default: ClassVar[float] = 5.0
    bounds: ClassVar[tuple[float, float]] = (0, 1000)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        trainer.reward_funcs.append(brevity)
        trainer.reward_func_names.append(brevity.__name__)
        trainer.reward_processing_classes.append(None)
        weight = torch.tensor([strength]).to(trainer.reward_weights)
        trainer.reward_weights = torch.cat([trainer.reward_weights, weight])


def brevity(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [1 - min(len(ids), LONG) / LONG for ids in completion_ids]
