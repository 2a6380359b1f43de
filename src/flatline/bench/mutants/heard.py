"""What a few steps of training do, to the last bit: two runs are the same or they are not."""

import hashlib
from collections.abc import Iterable
from typing import Any

_CLOCK = ("time", "per_second", "profiling")
"""In names of what a clock measured."""


def train_for(trainer: Any, steps: int) -> dict[str, Any]:
    """Train for some steps. What is asked for otherwise (schedule, saving) stays as it is."""
    from transformers import TrainerCallback

    from flatline.live.hooks import Patch

    heard: list[dict[str, Any]] = []
    rewards: list[str] = []
    gradients: list[str] = []

    def listening(scored: Any, *args: Any, **kwargs: Any) -> Any:
        found = scored(*args, **kwargs)
        rewards.append(_digest([found]))
        return found

    class Listener(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            found = (one.grad for one in given["model"].parameters() if one.grad is not None)
            gradients.append(_digest(found))

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            trained = (one for one in given["model"].parameters() if one.requires_grad)
            heard.append(
                {"rewards": [*rewards], "gradients": [*gradients], "weights": _digest(trained)}
            )
            rewards.clear()
            gradients.clear()
            if state.global_step >= steps:
                control.should_training_stop = True

    trainer.add_callback(Listener())
    with Patch(trainer, "_calculate_rewards", listening):
        trainer.train()
    return {"steps": heard, "log": _log(trainer.state.log_history)}


def _log(history: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What was logged, without what a clock measured."""
    return [
        {
            name: repr(value)
            for name, value in row.items()
            if not any(word in name for word in _CLOCK)
        }
        for row in history
    ]


def _digest(tensors: Iterable[Any]) -> str:
    import torch

    found = hashlib.blake2b(digest_size=16)
    for one in tensors:
        found.update(one.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()
