"""Alarms in the tracker that the trainer itself reports to, through the callback that it has.

Nothing is imported and no run is opened: where the trainer logs, there the alarm goes. What a model
wrote may be quoted in one, so it is escaped as in `flatline.diagnosis.renderers.trackers`.
"""

from collections.abc import Callable, Iterable
from typing import Any

from flatline.alarms.alarm import Alarm
from flatline.diagnosis.renderers.trackers.message import LONGEST
from flatline.hypotheses.base import Level
from flatline.markdown import inline
from flatline.trace.announce import say


def tell(callbacks: Iterable[Any], alarm: Alarm) -> None:
    """Tell every tracker among a trainer's callbacks; one that does not take it is said."""
    for callback in callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in TRACKERS:
                try:
                    TRACKERS[kind.__name__](callback, alarm)
                except Exception as error:  # a client raises whatever it likes
                    say(f"{kind.__name__} did not take the alarm: {type(error).__name__}: {error}.")
                break


def _wandb(callback: Any, alarm: Alarm) -> None:
    client = callback._wandb
    if client is not None and client.run is not None:
        client.run.alert(title=_title(alarm), text=_text(alarm), level=_level(client, alarm))


def _trackio(callback: Any, alarm: Alarm) -> None:
    client = callback._trackio
    if client is not None:
        client.alert(title=_title(alarm), text=_text(alarm), level=_level(client, alarm))


def _mlflow(callback: Any, alarm: Alarm) -> None:
    if callback._ml_flow is not None:
        tag = f"flatline.alarm.{alarm.code or alarm.name}"
        callback._ml_flow.set_tag(tag, f"step {alarm.step}: {_text(alarm)}")


def _tensorboard(callback: Any, alarm: Alarm) -> None:
    if callback.tb_writer is not None:
        said = f"{_title(alarm)}: {_text(alarm)}"
        callback.tb_writer.add_text("flatline/alarm", said, global_step=alarm.step)


TRACKERS: dict[str, Callable[[Any, Alarm], None]] = {
    "WandbCallback": _wandb,
    "TrackioCallback": _trackio,
    "MLflowCallback": _mlflow,
    "TensorBoardCallback": _tensorboard,
}
"""By the class of transformers' callback."""


def _title(alarm: Alarm) -> str:
    return inline(f"flatline: {alarm.title}", limit=LONGEST)


def _text(alarm: Alarm) -> str:
    return inline(f"{alarm.text} {alarm.fix}".strip(), limit=LONGEST)


def _level(client: Any, alarm: Alarm) -> Any:
    certain = alarm.level == Level.FAULT.value
    return client.AlertLevel.ERROR if certain else client.AlertLevel.WARN
