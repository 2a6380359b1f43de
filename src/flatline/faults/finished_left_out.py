"""Finished completions are taken for cut ones and left out of the loss.

`mask_truncated_completions` looks for the end token and has the wrong one. Seen with models that
end a turn with another token than their tokenizer names (torchtune issue 2967, TRL pull request
7039).

Strength: share of the rollouts that lose all of their loss.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Sampled, edit_rollouts, place
from flatline.live.trl.grpo import GrpoTrainer


class FinishedLeftOut(Fault):
    name: ClassVar[str] = "finished-left-out"
    hypothesis: ClassVar[str] = "H14"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(rollout: Sampled) -> Sampled:
            lost = place(str(rollout.completion_ids)) < strength
            return rollout._replace(mask=[0] * len(rollout.mask)) if lost else rollout

        edit_rollouts(trainer, edit)
