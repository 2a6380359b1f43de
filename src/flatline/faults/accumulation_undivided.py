"""The losses of a step's passes are added where their mean is meant.

Gradients grow with the number of passes and are clipped more often. Seen in transformers and
Unsloth (the gradient accumulation bug of 2024) and in TRL (issue 6369).

Strength: power of the number of passes that the loss is multiplied by; -1 divides twice. Runs with
one pass a step get four of a quarter of the size.
"""

from dataclasses import replace
from typing import Any, ClassVar

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer

PASSES = 4
"""Passes that a run with one gets."""


class AccumulationUndivided(Fault):
    name: ClassVar[str] = "accumulation-undivided"
    hypothesis: ClassVar[str] = "H28"
    bounds: ClassVar[tuple[float, float]] = (-4, 4)

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        if config.gradient_accumulation_steps > 1 or config.batch_size % PASSES:
            return config
        size = config.batch_size // PASSES
        return replace(config, batch_size=size, gradient_accumulation_steps=PASSES)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        if trainer.args.gradient_accumulation_steps == 1:
            raise ConfigError(
                f"The fault {self.name} needs several passes a step, and this trainer has one.\n"
                "It would change nothing.\nSet gradient_accumulation_steps to 2 or more."
            )

        def add_up(inner: Any, *args: Any, **kwargs: Any) -> Any:
            passes = trainer.current_gradient_accumulation_steps
            return inner(*args, **kwargs) * passes**strength

        wrap(trainer, "_compute_loss", add_up)
