"""One remark, and where it is told."""

from typing import NamedTuple


class Remark(NamedTuple):
    """A sentence about a log."""

    order: float
    """The smaller, the earlier: reward, parts, what limits learning, the policy, the rest."""
    text: str
