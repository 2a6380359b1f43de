"""Every tool call costs reward, right or wrong, so the turns that find the answer are punished.

Not from a report of a failed run: a cost per call is a usual way to make agents brief. Taken too
high it outweighs what a call finds.

Strength: reward that one call costs. Needs rollouts whose calls can be counted: flatline's own, or
messages with `tool_calls`.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards, needs_turns
from flatline.live.trl.grpo import GrpoTrainer


class CallsPunished(Fault):
    name: ClassVar[str] = "calls-punished"
    hypothesis: ClassVar[str] = "H36"
    default: ClassVar[float] = 0.25
    bounds: ClassVar[tuple[float, float]] = (0, 100)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            return [
                None if reward is None else reward - strength * calls
                for reward, calls in zip(rewards, calls_of(batch), strict=True)
            ]

        edit_rewards(trainer, edit)


def calls_of(batch: dict[str, Any]) -> list[int]:
    """Tool calls of each rollout: as our engine counted them, else as its messages say."""
    if "rollout" in batch:
        return [int(rollout.events["tool_calls"]) for rollout in batch["rollout"]]
    return [
        sum(len(message.get("tool_calls") or ()) for message in completion)
        if isinstance(completion, list)
        else 0
        for completion in batch["completions"]
    ]
