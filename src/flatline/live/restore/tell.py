"""What is told of putting a training back: before it is looked at, and after. Knows no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 5
"""Of one kind that are named in a sentence; JSON has them all."""


@dataclass(frozen=True, slots=True)
class NotKept:
    """Something that can be reached and cannot be put back."""

    where: str
    """From what the user gave: "your reward function `paid`, `.client`"."""
    what: str
    """What it is, as the end of "this is ..."."""

    def __str__(self) -> str:
        return f"{self.where} ({self.what})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """How a checkup left what it looked at."""

    kept: int
    """Objects and tensors that were kept and put back."""
    before: str
    """Digest of all of them, before anything was tried."""
    after: str
    """The same after the last putting back."""
    differs: tuple[str, ...]
    """Where the two are not the same."""
    not_kept: tuple[NotKept, ...]
    """What was named before, since it cannot be put back."""
    not_looked_into: tuple[str, ...]
    """What was too large, or whose inside nobody knows: no statement is made about it."""
    calls: Mapping[str, int]
    """By name: how often a function of the user's was called for the checkup."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader of a report must know; empty where everything is as it was."""
        said = []
        if self.differs:
            said.append(
                "This trainer was not put back as it was: a digest from before the checkup and "
                f"one from after it differ at {listed(self.differs)}. Build the trainer anew "
                "before you train it."
            )
        if self.not_kept:
            called = ", ".join(f"`{name}` {times} times" for name, times in self.calls.items())
            said.append(
                f"Everything was put back but {listed(self.not_kept)}"
                + (f". The checkup called {called}." if called else ".")
            )
        return tuple(said)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the JSON of a report."""
        return {
            "verified": not self.differs,
            "kept": self.kept,
            "digest_before": self.before,
            "digest_after": self.after,
            "differs": list(self.differs),
            "not_kept": [{"where": one.where, "what": one.what} for one in self.not_kept],
            "not_looked_into": list(self.not_looked_into),
            "calls": dict(self.calls),
        }


def beforehand(not_kept: Sequence[NotKept]) -> str:
    """What is said before anything is tried; empty where everything can be kept."""
    if not not_kept:
        return ""
    return (
        "a checkup calls your reward functions and callbacks more times, and then puts everything "
        f"back but this: {listed(not_kept)}. If your training depends on it, build the trainer "
        "anew after the checkup."
    )


def listed(found: Sequence[object]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(str(one) for one in found[:SHOWN]) + more
