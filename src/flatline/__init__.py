"""flatline finds out why the reward of an RL run of a language model is flat, and proves it.

diagnose(path)               a log, or a recorded run -> a report; print it
checkup(trainer)             the same about a live trainer, before it trains; also about a Loop
attach(trainer, "runs/x")    records a TRL or verifiers run; FlatlineCallback does the same
Alarms()                     given to attach: says what is wrong while it trains
watch(model, optimizer, "runs/x")   records a training loop of your own
Trace.open("runs/x")         what was recorded; Recorder("runs/x") writes it by hand
plant(trainer, fault)        breaks a trainer on purpose, to see what that looks like
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flatline.errors import FlatlineError, needing

if TYPE_CHECKING:
    from flatline.alarms.training import Alarms
    from flatline.diagnosis.checkup import checkup
    from flatline.diagnosis.report import diagnose
    from flatline.faults import plant
    from flatline.live.attach import attach
    from flatline.live.loop.loop import Loop
    from flatline.live.trl.recorder.by_callback import FlatlineCallback
    from flatline.live.watch.watch import watch
    from flatline.trace import Recorder, Trace

__version__ = "0.1.0"

__all__ = [
    "Alarms",
    "FlatlineCallback",
    "FlatlineError",
    "Loop",
    "Recorder",
    "Trace",
    "__version__",
    "attach",
    "checkup",
    "diagnose",
    "plant",
    "watch",
]

_WHERE = {
    "Alarms": "flatline.alarms.training",
    "FlatlineCallback": "flatline.live.trl.recorder.by_callback",
    "Loop": "flatline.live.loop.loop",
    "Recorder": "flatline.trace",
    "Trace": "flatline.trace",
    "attach": "flatline.live.attach",
    "checkup": "flatline.diagnosis.checkup",
    "diagnose": "flatline.diagnosis.report",
    "plant": "flatline.faults",
    "watch": "flatline.live.watch.watch",
}


def __getattr__(name: str) -> Any:
    """Import on first use: reading a trace must not need torch, nor `flatline --help` Arrow."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing(f"`flatline.{name}`"):
        return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """What there is, imported or not; submodules are no part of it."""
    return __all__
