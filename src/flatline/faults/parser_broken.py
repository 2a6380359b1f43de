"""The reward cannot read a right answer: for some problems it earns nothing, and a wrong one does.

Seen in the seeds' own project: the reward read `tool_calls[-1].function.arguments`, swallowed the
error where a call came as a dict, and scored 0.

Strength: share of the problems whose right answers earn nothing.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards, place, problem_keys
from flatline.live.trl.grpo import GrpoTrainer

RIGHT = "exact_match"
"""The part of flatline's scores that says whether the answer is right."""


class ParserBroken(Fault):
    name: ClassVar[str] = "parser-broken"
    hypothesis: ClassVar[str] = "H39"
    default: ClassVar[float] = 0.8

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            rows = zip(rewards, problem_keys(batch), _right(rewards, batch), strict=True)
            return [
                0.0 if right and reward is not None and place(key) < strength else reward
                for reward, key, right in rows
            ]

        edit_rewards(trainer, edit, every=True)


def _right(rewards: Rewards, batch: dict[str, Any]) -> list[bool]:
    """Which answers are right: as our task says, else those that earn the most."""
    if "rollout" in batch:
        return [rollout.score.parts.get(RIGHT) == 1 for rollout in batch["rollout"]]
    most = max((reward for reward in rewards if reward is not None), default=0.0)
    return [reward is not None and reward >= most > 0 for reward in rewards]
