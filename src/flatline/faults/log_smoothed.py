"""The logged reward is not that of the step: it is averaged with all that was logged before.

A curve that looks calm and reacts late. Seen in dashboards that smooth by default, and in trainers
that log running means.

Strength: share of what was logged before in each new value.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer

LOGGED = "reward"
"""The metric that is bent."""


class LogSmoothed(Fault):
    name: ClassVar[str] = "log-smoothed"
    hypothesis: ClassVar[str] = "H48"
    default: ClassVar[float] = 0.9

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        shown: list[float] = []

        def log(inner: Any, *args: Any, **kwargs: Any) -> Any:
            values = trainer._metrics["train"].get(LOGGED)
            if values:
                mean = sum(values) / len(values)
                mean = strength * shown[-1] + (1 - strength) * mean if shown else mean
                shown[:] = [mean]
                trainer._metrics["train"][LOGGED] = [mean]
            return inner(*args, **kwargs)

        wrap(trainer, "log", log)
