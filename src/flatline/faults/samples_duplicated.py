"""The completions of a group are copies: requests that should differ share one random seed.

Seen in ms-swift (issue 3450): 3 of 6 completions were equal, by rank. TRL gives each rank of vLLM a
seed of its own for that reason.

Strength: how often each completion stands in its group.
"""

from typing import Any, ClassVar

from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class SamplesDuplicated(Fault):
    name: ClassVar[str] = "samples-duplicated"
    hypothesis: ClassVar[str] = "H34"
    default: ClassVar[float] = 4
    bounds: ClassVar[tuple[float, float]] = (1, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        if getattr(trainer, "environment_factory", None) or getattr(trainer, "environments", None):
            raise ConfigError(
                f"The fault {self.name} copies completions, and this trainer's environments hold "
                "what earned them.\nCopies would be paid for what others did.\n"
                "Plant it in a trainer without `environment_factory`."
            )
        size, times = trainer.num_generations, int(strength)

        def generate(inner: Any, prompts: Any) -> Any:
            sources = [i - i % size % times for i in range(len(prompts))]
            return tuple(_taken(value, sources) for value in inner(prompts))

        wrap(trainer, "_generate", generate)


def _taken(value: Any, sources: list[int]) -> Any:
    """What belongs to the rollouts, taken from where it is copied."""
    if isinstance(value, dict):
        return {name: _taken(one, sources) for name, one in value.items()}
    if isinstance(value, list) and len(value) == len(sources):
        return [value[source] for source in sources]
    return value
