"""Episodes have fewer turns than the problems need, in training and in evaluation alike.

Not from a report: limits of three or four turns are common in agent configs, and problems of four
hops need five.

Strength: turns of an episode.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault


class TurnsTooFew(Fault):
    name: ClassVar[str] = "turns-too-few"
    hypothesis: ClassVar[str] = "H42"
    default: ClassVar[float] = 3
    bounds: ClassVar[tuple[float, float]] = (1, 1000)
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, max_turns=int(strength))
