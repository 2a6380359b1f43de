"""Ways into the passes that score tokens, which faults share."""

from typing import Any

from flatline.live.trl.grpo import GrpoTrainer

USUAL_BETA = 0.04
"""Weight of the KL term where a fault of the KL meets a run without one; TRL's default for long."""


def is_reference(trainer: GrpoTrainer, model: Any) -> bool:
    """Whether a scoring pass asks for the reference: another model, or the adapter is off."""
    if trainer.ref_model is not None:
        return model is trainer.ref_model
    return any(getattr(module, "disable_adapters", False) is True for module in model.modules())
