"""Our own engine behind a trainer, as far as a checkup needs to know it."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine


@runtime_checkable
class Rollouts(Protocol):
    """A `rollout_func` that plays with our engine (`flatline.training.rollouts`)."""

    chat: ChatFormat
    engine: Engine | None
    weights: Any
    """What the engine samples from."""

    def playing(self, trainer: GrpoTrainer) -> AbstractContextManager[Engine]:
        """The engine, with the trainer's weights whole and in the trainer's precision."""

    def _ready_engine(self) -> Engine:
        """The engine that plays, made at the first use."""
