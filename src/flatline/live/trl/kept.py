"""What of a TRL trainer a checkup goes back to, by the names that the user has for it."""

from typing import Any

from torch import Tensor

from flatline.live.held import keeps_order
from flatline.live.restore.snapshot import Snapshot
from flatline.live.trl.engine import Rollouts
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.recorder.callback import StepWatch
from flatline.live.trl.settings import reward_names
from flatline.rollout.weights import WeightCopy

GIVEN = {
    "train_dataset": "your dataset",
    "eval_dataset": "your evaluation dataset",
    "data_collator": "your data collator",
    "rollout_func": "your rollout function",
    "tools": "your tools",
    "environment_factory": "your environments",
    "compute_metrics": "your metrics",
    "lr_scheduler": "your schedule",
}
"""Attributes of a trainer that hold what the user gave it."""


def snapshot_of(trainer: GrpoTrainer, rollouts: Rollouts | None) -> Snapshot:
    """Everything that a measurement may change, as it is now."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    callbacks = trainer.callback_handler.callbacks
    attachments = [one._attachment for one in callbacks if isinstance(one, StepWatch)]
    accelerator = trainer.accelerator
    machinery = {"this trainer": trainer, "its accelerator": accelerator}
    machinery |= {"its gradient state": accelerator.gradient_state}
    machinery |= {f"its recording {number}": one for number, one in enumerate(attachments)}
    machinery |= {f"its order {n}": one for n, one in enumerate(keeps_order(optimizer))}
    tensors: list[Tensor] = []
    if rollouts is not None:
        held = {"its rollouts": rollouts, "its sampler": rollouts.weights}
        machinery |= {**held, "its engine": rollouts.engine}
        if isinstance(rollouts.weights, WeightCopy):
            tensors += rollouts.weights._tensors.values()

    def pause() -> None:
        for one in attachments:  # a run's trace holds what was trained, not what was tried
            one._recording = None

    models = [trainer.model, getattr(trainer, "ref_model", None)]
    return Snapshot(
        models=[model for model in models if model is not None],
        optimizer=optimizer,
        tensors=tensors,
        users=_given(trainer),
        machinery=machinery,
        pause=pause,
    )


def _given(trainer: GrpoTrainer) -> dict[str, Any]:
    """The user's own parts, by what they are called in a message."""
    named = zip(reward_names(trainer), trainer.reward_funcs, strict=False)
    found = {f"your reward function `{name}`": function for name, function in named}
    for number, one in enumerate(trainer.callback_handler.callbacks):
        name = f"your callback `{type(one).__name__}`"
        found[f"{name} ({number})" if name in found else name] = one
    for attribute, name in GIVEN.items():
        found[name] = vars(trainer).get(attribute)
    return found
