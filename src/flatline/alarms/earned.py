"""The time that looking may take: a hundredth of the training's, all looks together.

A look is paid for by what was trained before it, and leaves enough for the one at the end, as far
as the steps that are still planned do not pay for that. The first alone may borrow from them: what
is broken from the start shows in the first step, and whoever knows it then has lost nothing yet.
"""

import math
from dataclasses import dataclass

from flatline.alarms.lookout import WINDOW

SHARE = 0.01
"""Of the training's time that looking may take."""
FIRST = 0.06
"""Seconds that a look at one step takes, about: 0.04 to 0.06 in the lab."""


@dataclass(slots=True)
class Earned:
    """What was spent on looking so far, in seconds."""

    spent: float = 0.0
    last: float = FIRST
    steps: int = 1
    """Of the latest look, and how many steps it had before it."""

    def pays(self, done: int, planned: int, seconds: float) -> bool:
        """Whether there is time for a look after so many of the planned steps, which took so many
        seconds."""
        earned, all_earned = SHARE * seconds, SHARE * seconds * max(planned, done) / done
        spent = self.spent + self._expected(done)
        now = spent <= earned or not self.spent
        return now and spent + self._expected(max(planned, done)) <= all_earned

    def took(self, seconds: float, steps: int) -> None:
        """A look at so many steps is done."""
        self.spent += seconds
        self.last, self.steps = seconds, steps

    def _expected(self, steps: int) -> float:
        """Seconds of a look: eight times the steps take three times as long."""
        return self.last * math.sqrt(min(steps, WINDOW) / min(self.steps, WINDOW))
