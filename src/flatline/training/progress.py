"""How a run is going: one line that stays in place on a terminal, one line a log step elsewhere."""

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from transformers import TrainerCallback

HELD_OUT = "eval_combined"


class ProgressDisplay(TrainerCallback):  # type: ignore[misc]
    """Steps done, reward, held-out reward and time left, on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._reward = self._heldout = "-"

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not (state.is_world_process_zero and self._console.is_terminal):
            return
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("reward {task.fields[reward]}"),
            TextColumn("held-out {task.fields[heldout]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._progress.start()
        self._bar = self._progress.add_task(
            "training",
            total=state.max_steps,
            completed=state.global_step,
            reward=self._reward,
            heldout=self._heldout,
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._bar, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        logs = logs or {}
        self._reward = _shown(logs.get("reward"), self._reward)
        self._heldout = _shown(logs.get(HELD_OUT), self._heldout)
        if self._progress is not None:
            self._progress.update(self._bar, reward=self._reward, heldout=self._heldout)
        elif state.is_world_process_zero and (HELD_OUT in logs or "reward" in logs):
            self._console.print(_line(state, logs), highlight=False, soft_wrap=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back, also when the run breaks off."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _line(state: Any, logs: dict[str, Any]) -> str:
    step = f"step {state.global_step}/{state.max_steps}"
    if HELD_OUT in logs:
        return f"{step}  held-out reward {logs[HELD_OUT]:.3f}"
    values = {"reward": "reward", "debug/reward_std": "group std", "grad_norm": "grad norm"}
    values |= {"kl": "kl", "step_time": "seconds"}
    shown = [f"{name} {logs[key]:.3g}" for key, name in values.items() if logs.get(key) is not None]
    return "  ".join([step, *shown])


def _shown(value: float | None, before: str) -> str:
    return before if value is None else f"{value:.3f}"
