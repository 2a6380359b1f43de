"""`FlatlineCallback`: `flatline.attach` for people who hand their trainer callbacks.

    GRPOTrainer(..., callbacks=[FlatlineCallback("runs/x")])

It only attaches, once, when training begins; the recorder is the one of `attach`.
"""

import inspect
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from flatline.errors import TraceError
from flatline.live.trl.recorder.attach import Attachment, StepListener, attach
from flatline.trace.writer import Sink


class FlatlineCallback(TrainerCallback):  # type: ignore[misc]
    """Records what the trainer that it is given to trains."""

    def __init__(
        self,
        run_dir: str | Path | Sink,
        *,
        correct: str | None = None,
        gold: str | None = None,
        alarms: StepListener | None = None,
    ) -> None:
        self.run_dir, self.correct, self.gold, self.alarms = run_dir, correct, gold, alarms
        """As in `attach`."""
        self.attachment: Attachment | None = None
        """What `attach` returned; None before training."""

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainerCallback:
        """In a copy of a trainer that it records it is deaf, as what `attach` adds is."""
        return TrainerCallback() if self.attachment else self._anew()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.attachment is None:
            # The handler goes on to the callback that `attach` adds: it hears this event too.
            self.attachment = attach(
                _trainer_of(self), self.run_dir, correct=self.correct, gold=self.gold
            ).telling(self.alarms)

    def _anew(self) -> TrainerCallback:
        return FlatlineCallback(
            self.run_dir, correct=self.correct, gold=self.gold, alarms=self.alarms
        )


def _trainer_of(callback: TrainerCallback) -> Any:
    """transformers gives a callback all but the trainer; it is the caller of the event."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        handler = getattr(caller, "callback_handler", None)
        if callback in getattr(handler, "callbacks", ()):
            return caller
        frame = frame.f_back
    raise TraceError(
        "FlatlineCallback was called at the start of training, but not by a trainer that has it.\n"
        "It has to find the trainer to record it.\n"
        'Attach it yourself before `trainer.train()`: `flatline.attach(trainer, "runs/x")`.'
    )
