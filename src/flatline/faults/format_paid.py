"""Form is paid on top of the task's reward, and so well that it decides which rollout is best.

Seen in open-r1 (issues 255 and 373): the form was learnt in a few steps, and the answers were not.

Strength: weight of the reward for form, which is 1 for a rollout that has it. Form is what
flatline's tasks score as `format`, elsewhere an `<answer>` tag.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards
from flatline.live.trl.grpo import GrpoTrainer


class FormatPaid(Fault):
    name: ClassVar[str] = "format-paid"
    hypothesis: ClassVar[str] = "H37"
    default: ClassVar[float] = 2.0
    bounds: ClassVar[tuple[float, float]] = (0, 1000)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            return [
                None if reward is None else reward + strength * form
                for reward, form in zip(rewards, _forms(batch), strict=True)
            ]

        edit_rewards(trainer, edit)


def _forms(batch: dict[str, Any]) -> list[float]:
    if "rollout" in batch:
        return [rollout.score.parts.get("format", 0.0) for rollout in batch["rollout"]]
    return [float("</answer>" in str(completion)) for completion in batch["completions"]]
