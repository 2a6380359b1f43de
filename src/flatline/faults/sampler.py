"""Ways into flatline's own sampler that faults share.

They act while the trainer asks for rollouts (`rollout_func`). Held-out evaluation plays with the
same engine and stays healthy: it shows the weights as they really are.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from flatline.errors import ConfigError
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer

Change = Callable[[Any, Any], AbstractContextManager[None]]
"""Takes the engine and the trainer, and lasts while the trainer's rollouts are played."""


def while_sampling(trainer: GrpoTrainer, name: str, change: Change) -> None:
    """Let `change` hold whenever the trainer asks for rollouts."""
    rollouts = _our_rollouts(trainer, name)
    kind: Any = type(rollouts)

    # Python looks `__call__` up on the class, so this one object gets a class of its own.
    class Changed(kind):  # type: ignore[misc]
        def __call__(self, prompts: Any, trainer: GrpoTrainer) -> Any:
            healthy = self.playing

            @contextmanager
            def playing(trainer: GrpoTrainer) -> Iterator[Any]:
                with healthy(trainer) as engine, change(engine, trainer):
                    yield engine

            with swapped(self, playing=playing):
                return super().__call__(prompts, trainer)

    Changed.__name__, Changed.__qualname__ = kind.__name__, kind.__qualname__
    rollouts.__class__ = Changed


def change_sampling(trainer: GrpoTrainer, name: str, edit: Callable[[Any], Any]) -> None:
    """Let the trainer's rollouts be drawn in another way."""

    @contextmanager
    def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
        with swapped(engine, sampling=edit(engine.sampling)):
            yield

    while_sampling(trainer, name, change)


def policy(trainer: GrpoTrainer) -> Any:
    """The model that is trained, without wrappers of the launcher."""
    return trainer.accelerator.unwrap_model(trainer.model)


def _our_rollouts(trainer: GrpoTrainer, name: str) -> Any:
    rollouts = getattr(trainer, "rollout_func", None)
    if not (hasattr(rollouts, "playing") and hasattr(rollouts, "chat")):
        raise ConfigError(
            f"The fault {name} is one of the sampler, and this trainer does not sample with "
            "flatline's.\nIts sampler cannot be reached.\n"
            "Train with `flatline train --engine embedded`."
        )
    return rollouts
