"""When a step begins, ends and is logged. The row of a step waits for its log line.

transformers says `on_step_end` before it logs, evaluates and saves; the flags of `control` tell
which of these will follow. Whatever comes next writes the row at the latest.
"""

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from flatline.trace.attach_steps import heldout_reward, logged_facts

if TYPE_CHECKING:
    from flatline.trace.attach import Attachment


class StepWatch(TrainerCallback):  # type: ignore[misc]
    """Listens to the training loop for one attachment."""

    def __init__(self, attachment: "Attachment") -> None:
        self._attachment = attachment
        self._row: dict[str, Any] | None = None
        """The step's row while it waits."""
        self._waits_for: set[str] = set()
        self._heldout: dict[int, float] = {}
        """Held-out rewards that were logged before the row of their step existed."""
        self._last_logged = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._last_logged = state.global_step
        self._attachment.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.write_pending()
        self._attachment.work("begin_step")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._attachment.work("before_optimizer", kwargs.get("optimizer"))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        row = self._attachment.work("end_step", state.global_step)
        if row is None:
            return
        if state.global_step in self._heldout:
            row["heldout_reward"] = self._heldout.pop(state.global_step)
        flags = {
            "log": control.should_log,
            "evaluation": control.should_evaluate,
            "end": control.should_training_stop,  # held-out problems may be played at the end
        }
        self._row, self._waits_for = row, {name for name, due in flags.items() if due}
        self._write_if_whole()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        logs = logs or {}
        reward = heldout_reward(logs)
        if reward is not None:
            self._note_heldout(state.global_step, reward)
        if "loss" in logs and self._row is not None and self._row["step"] == state.global_step:
            self._row |= logged_facts(logs, state.global_step - self._last_logged)
            self._waits_for.discard("log")
        if "loss" in logs:
            self._last_logged = state.global_step
        self._write_if_whole()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._waits_for.discard("evaluation")
        self._write_if_whole()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.write_pending()
        self._attachment.close()

    def write_pending(self) -> None:
        """Write the row as it is."""
        row, self._row = self._row, None
        if row is not None:
            self._attachment.work("write_step", row)

    def _write_if_whole(self) -> None:
        if not self._waits_for:
            self.write_pending()

    def _note_heldout(self, step: int, reward: float) -> None:
        if self._row is not None and self._row["step"] == step:
            self._row["heldout_reward"] = reward
        elif step == 0:
            self._attachment.work("write_step", {"step": 0, "heldout_reward": reward})
        else:
            self._heldout[step] = reward
