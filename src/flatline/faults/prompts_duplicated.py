"""A step plays the same few prompts again and again, and most of the data is never visited.

Seen in the seeds' own project: sizes were derived before they were changed, and going from 4 to 8
accumulation steps doubled every prompt inside a step and left out half of the data.

Strength: how often a prompt stands in one step.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

from torch.utils.data import Sampler

from flatline.faults.base import Fault
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class PromptsDuplicated(Fault):
    name: ClassVar[str] = "prompts-duplicated"
    hypothesis: ClassVar[str] = "H33"
    default: ClassVar[float] = 4
    bounds: ClassVar[tuple[float, float]] = (1, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def sampler(inner: Any, *args: Any, **kwargs: Any) -> Sampler[int]:
            return _Duplicating(inner(*args, **kwargs), trainer, int(strength))

        wrap(trainer, "_get_train_sampler", sampler)


class _Duplicating(Sampler[int]):
    """Every so many groups of a step are the first of them."""

    def __init__(self, inner: Any, trainer: GrpoTrainer, times: int) -> None:
        self._inner, self._times = inner, times
        self._group, self._step = trainer.num_generations, trainer.args.generation_batch_size

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[int]:
        for step in _pieces(self._inner, self._step):
            groups = list(_pieces(step, self._group))
            for i in range(len(groups)):
                yield from groups[i - i % self._times]


def _pieces(items: Iterable[int], size: int) -> Iterator[list[int]]:
    iterator = iter(items)
    while piece := list(islice(iterator, size)):
        yield piece
