"""The trainer's prompts begin with their first token twice.

The chat template writes the token that begins a text, and the tokenizer adds it again. Seen with
every model that has one (Llama, Gemma, Mistral) where templated text is encoded with special
tokens.

Strength: how often the first token is added.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Sampled, edit_rollouts
from flatline.live.trl.grpo import GrpoTrainer


class FirstTokenDoubled(Fault):
    name: ClassVar[str] = "first-token-doubled"
    hypothesis: ClassVar[str] = "H16"
    bounds: ClassVar[tuple[float, float]] = (0, 100)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(rollout: Sampled) -> Sampled:
            more = rollout.prompt_ids[:1] * int(strength)
            return rollout._replace(prompt_ids=[*more, *rollout.prompt_ids])

        edit_rollouts(trainer, edit)
