"""`flatline.Alarms`: looks at a run while it trains, and says what is wrong when it shows.

    flatline.attach(trainer, "runs/x", alarms=flatline.Alarms())

Looking takes a hundredth of the training's time (`earned`): it is done at every step of ten seconds
or more, and seldom where steps are short. It reads what is recorded and touches nothing of the
trainer but, with `on_fault="stop"`, the flags by which transformers ends a run. What goes wrong in
it is said once and never reaches the training.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from flatline.alarms import trackers
from flatline.alarms.alarm import Alarm
from flatline.alarms.earned import Earned
from flatline.alarms.lookout import Lookout
from flatline.errors import ConfigError
from flatline.hypotheses.base import Level
from flatline.live.trl.recorder.attach import Attachment
from flatline.trace.announce import say


class Alarms:
    """Alarms of one run; give it to `flatline.attach` or `FlatlineCallback`."""

    def __init__(
        self,
        tell: Callable[[Alarm], object] | None = None,
        *,
        on_fault: Literal["warn", "stop"] = "warn",
    ) -> None:
        """`tell` is called with every alarm, beside the console and the trainer's tracker.
        `on_fault="stop"` ends the training with a checkpoint where an invariant is broken."""
        if on_fault not in ("warn", "stop"):
            raise ConfigError(
                f"on_fault={on_fault!r} is neither 'warn' nor 'stop'.\n"
                "What to do with a run that is broken must be known before it is.\n"
                "Leave it out to be warned, or pass on_fault='stop' to end the run."
            )
        self.told: list[Alarm] = []
        """Every alarm so far."""
        self._tell, self._stops = tell, on_fault == "stop"
        self._lookout = Lookout()
        self._start: float | None = None
        self._earned = Earned()
        self._resumed_at: int | None = None
        """The step before the first that was heard of."""
        self._broken = False

    def attached(self, attachment: Attachment) -> None:
        """Called by `attach`."""
        processes = int(attachment.trainer.accelerator.num_processes)
        if self._stops and processes > 1:
            raise ConfigError(
                f"on_fault='stop' cannot stop {processes} processes.\n"
                "One that ends its training alone leaves the others waiting for it.\n"
                "Leave it out, and stop the run from a function: `Alarms(tell=...)`."
            )
        self._start = time.perf_counter()

    def step_ended(self, attachment: Attachment, control: Any) -> None:
        """Called after every step that was recorded."""
        state = attachment.trainer.state
        if self._resumed_at is None:
            self._resumed_at = state.global_step - 1
        done, planned = (n - self._resumed_at for n in (state.global_step, state.max_steps))
        if self._earned.pays(done, planned, time.perf_counter() - (self._start or 0.0)):
            self._look(attachment)
        if self._stops and any(one.level == Level.FAULT.value for one in self.told):
            control.should_training_stop = control.should_save = True

    def training_ended(self, attachment: Attachment) -> None:
        """Called when all steps are in the trace: what no look has seen is looked at now."""
        self._look(attachment)

    def _look(self, attachment: Attachment) -> None:
        if self._broken or int(attachment.trainer.accelerator.process_index) > 0:
            return
        begun = time.perf_counter()
        try:
            for alarm in self._lookout.look(attachment.trace):
                self.told.append(alarm)
                self._say(attachment, alarm)
        except Exception as error:
            self._broken = True
            with suppress(Exception):  # even what describes itself badly
                why = f"{type(error).__name__}: {error}"
                say(f"no more alarms, training and recording go on: {why}. Please report it.")
        steps = int(attachment.trainer.state.global_step) - (self._resumed_at or 0)
        self._earned.took(time.perf_counter() - begun, max(steps, 1))

    def _say(self, attachment: Attachment, alarm: Alarm) -> None:
        say(str(alarm))
        trackers.tell(attachment.trainer.callback_handler.callbacks, alarm)
        if self._tell is None:
            return
        try:
            self._tell(alarm)
        except Exception as error:
            say(f"what `tell` does with an alarm failed: {type(error).__name__}: {error}.")
