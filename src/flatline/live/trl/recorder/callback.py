"""When a step begins, ends and is logged. The row of a step waits for its log line.

transformers says `on_step_end` before it logs, evaluates and saves; the flags of `control` tell
which of these will follow. Whatever comes next writes the row at the latest.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.recorder.steps import heldout_reward, logged_facts
from flatline.live.trl.settings import RLOO, algorithm_of

if TYPE_CHECKING:
    from flatline.live.trl.recorder.attach import Attachment


def _guarded(heard: Callable[..., None]) -> Callable[..., None]:
    """An error in it ends the recording, and not the training."""

    @functools.wraps(heard)
    def call(watch: "StepWatch", *args: Any, **kwargs: Any) -> None:
        watch._attachment.watch(lambda: heard(watch, *args, **kwargs))

    return call


class Listener(TrainerCallback):  # type: ignore[misc]
    """A callback of one trainer. What stands in its place in a copy of that trainer is deaf: a copy
    is not recorded, least of all into the same trace."""

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainerCallback:
        return TrainerCallback()


class StepEnd(Listener):
    """Hears of the end of a step before other callbacks do: one may evaluate for an hour then."""

    def __init__(self, watch: "StepWatch") -> None:
        self._watch = watch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watch.step_ended(state, control)


class StepWatch(Listener):
    """Listens to the training loop for one attachment."""

    def __init__(self, attachment: "Attachment") -> None:
        self._attachment = attachment
        self._row: dict[str, Any] | None = None
        """The step's row while it waits."""
        self._waits_for: set[str] = set()
        self._last_logged = 0
        self._sets_noted = False
        # RLOO keeps no log-probs of its reference: its own KL, k1, is all that is known.
        rloo = algorithm_of(attachment.trainer) == RLOO
        self._logged = ("loss", "entropy", *(["kl"] if rloo else []))

    @property
    def folder(self) -> Path | None:
        """Where it is recorded; None for a sink."""
        return self._attachment.path

    @_guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._last_logged = state.global_step
        self._attachment.begin()

    @_guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.write_pending(control)
        self._attachment.work("begin_step")

    @_guarded
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._attachment.work("before_optimizer", kwargs.get("optimizer"))

    @_guarded
    def step_ended(self, state: Any, control: Any) -> None:
        """Told by `StepEnd`; all other events come when the other callbacks have had theirs."""
        self._row = self._attachment.work("end_step", state.global_step)
        flags = {
            "log": control.should_log,
            "evaluation": control.should_evaluate,
            "end": control.should_training_stop,  # held-out problems may be played at the end
        }
        self._waits_for = {name for name, due in flags.items() if due}
        self._attachment.work("keep")

    @_guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._write_if_whole(control)

    @_guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        logs = logs or {}
        sets = _sets(self._attachment.trainer)
        reward = heldout_reward(logs, sets=sets)
        if reward is not None:
            self._note_heldout(state.global_step, reward)
        elif "eval_reward" in logs:
            self._note_sets(sets)
        if "loss" in logs and self._row is not None and self._row["step"] == state.global_step:
            self._row |= logged_facts(logs, state.global_step - self._last_logged, self._logged)
            self._waits_for.discard("log")
        if "loss" in logs:
            self._last_logged = state.global_step
        self._write_if_whole(control)

    @_guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._waits_for.discard("evaluation")
        self._write_if_whole(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._attachment.watch(self.write_pending)
        if self._attachment.alarms is not None:
            # Before the trace is packed: to read it then costs twice.
            self._attachment.alarms.training_ended(self._attachment)
        self._attachment.close()  # also where the recording has stopped: it lets go of the folder
        if self._attachment.failed:  # how far it goes is said all the same
            with suppress(Exception):
                self._attachment.say_what_is_next()
        else:
            self._attachment.watch(self._attachment.say_what_is_next)

    def write_pending(self, control: Any = None) -> None:
        """Write the row as it is."""
        row, self._row = self._row, None
        if row is None:
            return
        self._attachment.work("write_step", row)
        if control is not None and self._attachment.alarms is not None:
            self._attachment.alarms.step_ended(self._attachment, control)

    def _write_if_whole(self, control: Any) -> None:
        if not self._waits_for:
            self.write_pending(control)

    def _note_heldout(self, step: int, reward: float) -> None:
        if self._row is not None and self._row["step"] == step:
            self._row["heldout_reward"] = reward
        elif step == 0:
            self._attachment.work("write_step", {"step": 0, "heldout_reward": reward})

    def _note_sets(self, sets: Sequence[str]) -> None:
        if len(sets) > 1 and not self._sets_noted:
            self._sets_noted = True
            named = ", ".join(map(repr, sets))
            left = f"`heldout_reward` is left empty: the evaluation sets {named} could all fill it."
            self._attachment.note(notes=[left])


def _sets(trainer: GrpoTrainer) -> list[str]:
    """Names of the sets that the trainer evaluates on; none where it has only one, unnamed."""
    found = getattr(trainer, "eval_dataset", None)
    return [str(name) for name in found] if isinstance(found, dict) else []
