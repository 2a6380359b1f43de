"""So much weight on the KL divergence that the policy cannot leave its start.

Seen often enough that DAPO and Dr. GRPO leave the term out and TRL's default went from 0.04 to 0.

Strength: beta.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault


class KlHeavy(Fault):
    name: ClassVar[str] = "kl-heavy"
    hypothesis: ClassVar[str] = "H03"
    default: ClassVar[float] = 5.0
    bounds: ClassVar[tuple[float, float]] = (0, 1e6)
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, kl_beta=strength)
