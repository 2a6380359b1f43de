"""What a planted fault is.

A fault makes a healthy run go wrong in one known way, so that what flatline says about a run can be
held against what was really done to it. It changes what the defect changes and nothing else. Some
are a choice of settings (`change`), most are a defect of the live trainer (`plant`).
"""

from typing import ClassVar

from flatline.config import RunConfig
from flatline.live.trl.grpo import GrpoTrainer


class Fault:
    """One defect. The docstring of its module says what it is, where it was seen, and what
    strength means."""

    name: ClassVar[str]
    """In kebab-case, as it is typed after `--fault`."""
    hypothesis: ClassVar[str]
    """Code of the hypothesis that should find it."""
    default: ClassVar[float] = 1.0
    """Strength where none is given."""
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """Smallest and largest strength."""
    last: ClassVar[bool] = False
    """Planted after the others, because it reads what they have changed."""
    settings: ClassVar[bool] = False
    """Whether the defect is nothing but a choice of settings."""

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        """The settings of a run with the fault."""
        return config

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        """Plant the fault in a live TRL GRPOTrainer, by wrapping methods of this one object."""
