"""A guess without any search is paid well, so the policy stops searching.

Seen where the reward has a floor for anything that looks finished (verl pull request 4998, tools
given up on GSM8K; RAGEN's shallow strategies, arXiv 2504.20073).

Strength: the least that a finished rollout without a call earns.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.calls_punished import calls_of
from flatline.faults.wrapping import Rewards, edit_rewards, needs_turns
from flatline.live.trl.grpo import GrpoTrainer


class ShortcutPaid(Fault):
    name: ClassVar[str] = "shortcut-paid"
    hypothesis: ClassVar[str] = "H43"
    default: ClassVar[float] = 0.9
    bounds: ClassVar[tuple[float, float]] = (0, 1000)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            return [
                max(reward, strength) if reward is not None and calls == 0 else reward
                for reward, calls in zip(rewards, calls_of(batch), strict=True)
            ]

        edit_rewards(trainer, edit)
