"""A weight on the KL divergence at which the policy moves a little and is then held.

Seen in TRL, whose default was 0.04 before it became 0: with small advantages that is enough.

Strength: beta.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault


class KlAnchor(Fault):
    name: ClassVar[str] = "kl-anchor"
    hypothesis: ClassVar[str] = "H31"
    default: ClassVar[float] = 0.5
    bounds: ClassVar[tuple[float, float]] = (0, 1e6)
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, kl_beta=strength)
