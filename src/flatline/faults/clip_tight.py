"""Several passes over each batch, and a clip so narrow that only the first of them counts.

Seen where the number of passes is raised for speed and epsilon stays, or is taken from a loss that
clips whole sequences (GSPO uses 3e-4).

Strength: epsilon; runs with one pass over a batch get two.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault


class ClipTight(Fault):
    name: ClassVar[str] = "clip-tight"
    hypothesis: ClassVar[str] = "H29"
    default: ClassVar[float] = 3e-4
    bounds: ClassVar[tuple[float, float]] = (0, 1)
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        passes = max(2, config.num_iterations)
        return replace(config, epsilon=strength, num_iterations=passes)
