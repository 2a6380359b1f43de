"""Rollouts that come too late are thrown away: the longest of each generation train nothing.

Seen where an asynchronous trainer bounds staleness by discarding: tinker-cookbook pull request 822,
and prime-rl pull request 2960, where the rewards of what is withheld still shape the advantages of
the rest, as here.

Strength: share of a generation that comes too late.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import COMPLETION_IDS, MASK, wrap
from flatline.live.trl.grpo import GrpoTrainer


class SlowDropped(Fault):
    name: ClassVar[str] = "slow-dropped"
    hypothesis: ClassVar[str] = "H65"
    default: ClassVar[float] = 0.5

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def generate(inner: Any, prompts: Any) -> Any:
            found = list(inner(prompts))
            lengths = [len(ids) for ids in found[COMPLETION_IDS]]
            by_length = sorted(range(len(lengths)), key=lambda row: -lengths[row])
            late = set(by_length[: int(strength * len(lengths))])
            masks = found[MASK] or [[1] * length for length in lengths]
            found[MASK] = [
                [0] * len(mask) if row in late else mask for row, mask in enumerate(masks)
            ]
            return tuple(found)

        wrap(trainer, "_generate", generate)
