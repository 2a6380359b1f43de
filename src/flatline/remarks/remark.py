"""One remark, and where it is told; and the event that a log is about."""

from typing import NamedTuple


class Remark(NamedTuple):
    """A sentence about a log."""

    order: float
    """The smaller, the earlier: reward, parts, what limits learning, the policy, the rest."""
    text: str


class Event(NamedTuple):
    """What happened, in a sentence."""

    text: str
    certain: bool
    """Whether the outcome certainly moved with it."""
    moves_reward: bool
    """Whether it makes most of what the reward gains, so that its rise shows no learning."""
    after: str = ""
    """What it left behind, in a sentence."""
