"""LoRA is there and is called trainable, but its second half, which starts at zero, is frozen.

As long as B is zero, the gradient of A is zero too: nothing ever moves, and no error says so.
Adapters without gradient were seen in PEFT's issues 137 and 1142; which half is frozen is ours, as
a model without any trainable weight would raise an error.

Strength: share of the adapted layers that are frozen.
"""

from typing import ClassVar

from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import spread
from flatline.live.trl.grpo import GrpoTrainer


class AdapterFrozen(Fault):
    name: ClassVar[str] = "adapter-frozen"
    hypothesis: ClassVar[str] = "H06"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        halves = [p for name, p in trainer.model.named_parameters() if "lora_B" in name]
        if not halves:
            raise ConfigError(needs_lora(self.name))
        for half, frozen in zip(halves, spread(len(halves), strength), strict=True):
            if frozen:
                half.requires_grad_(False)


def needs_lora(name: str) -> str:
    return (
        f"The fault {name} is one of LoRA, and this run trains every weight.\n"
        "Leave out `--no-peft`."
    )
