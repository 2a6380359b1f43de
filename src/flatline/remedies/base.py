"""What a remedy is: the suspected cause taken away in a running trainer, and nothing else.

It listens to the trainer's own methods and puts the specified value in place of one that departs
from it. What is as specified is handed on untouched, the very same tensor, so that a healthy
trainer trains the same weights bit for bit. `undo` gives the trainer its own methods back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from flatline.trace.announce import say

Undo = Callable[[], None]


@dataclass(slots=True)
class Tally:
    """How often a remedy looked, and how often there was something to put right."""

    looked: int = 0
    acted: int = 0

    def chosen(self, own: Tensor, specified: Tensor, off: bool) -> Tensor:
        """The trainer's own value, or the specified one where it is off."""
        self.count(off)
        return specified if off else own

    def count(self, acted: bool) -> None:
        self.looked += 1
        self.acted += acted


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One way to take a cause away."""

    name: str
    """Kebab-case; several hypotheses may share a remedy."""
    what: str
    """What it does, in words that follow "this run": `gives the model ...`."""
    apply: Callable[[Any, Tally], list[Undo]]
    """Takes hold of a trainer that is built and has not begun. Raises `ConfigError` where there is
    nothing to take hold of."""
    setting: str = ""
    """The argument that it changes, as it would be typed; empty where it changes a value that
    departs from what was asked for. Only a setting alters a trainer that does what it was asked."""
    of_reward: bool = False
    """It changes what an answer is paid: held-out rows are then paid with it in both arms."""
    beyond_gradient: bool = False
    """It acts where the gradient of one batch does not show it, such as in the optimizer."""


@dataclass(slots=True)
class Applied:
    """Remedies that are in force on one trainer."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    """By the code of the hypothesis."""
    undos: list[Undo] = field(default_factory=list)

    def undo(self) -> None:
        """The trainer as it was."""
        while self.undos:
            self.undos.pop()()

    def report(self) -> None:
        """How much there was to do, once at the end."""
        for code, tally in self.tallies.items():
            say(f"the remedy for {code} put something right in {tally.acted} of {tally.looked}.")


def applied(trainer: Any, remedies: dict[str, Remedy]) -> Applied:
    """Take hold of a trainer; each remedy says what it does, once."""
    made = Applied()
    for code, remedy in remedies.items():
        tally = made.tallies.setdefault(code, Tally())
        try:
            made.undos += remedy.apply(trainer, tally)
        except BaseException:
            made.undo()
            raise
        if trainer.accelerator.process_index == 0:
            say(f"remedy for {code}: this run {remedy.what}.")
    return made
