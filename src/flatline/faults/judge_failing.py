"""The judge fails on some calls, and what it failed on is paid 0.

Seen where a reward function catches every error: NeMo-RL issue 431, and the judge of its pull
request 2479, whose time-outs, refused connections and unreadable answers all become 0.0.

Strength: share of the rows that it fails on.
"""

from itertools import count
from typing import Any, ClassVar

import numpy as np

from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards
from flatline.live.trl.grpo import GrpoTrainer


class JudgeFailing(Fault):
    name: ClassVar[str] = "judge-failing"
    hypothesis: ClassVar[str] = "H68"
    default: ClassVar[float] = 0.5

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        calls = count()

        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            # A network has no memory of what it was asked before: every call is another draw.
            key = [trainer.args.seed, trainer.accelerator.process_index, next(calls)]
            fails = np.random.default_rng(key).random(len(rewards)) < strength
            pairs = zip(rewards, fails, strict=True)
            return [0.0 if failed and paid is not None else paid for paid, failed in pairs]

        edit_rewards(trainer, edit)
