"""One of our own trainers under the checkup: task, problems and engine are known."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from flatline.errors import NotRecorded
from flatline.live.records import Floats, GoldTurns, HeldoutPath, Oracle, Problems
from flatline.live.trl.subject import TrlSubject
from flatline.training import oracle
from flatline.training.effective import effective
from flatline.training.rewards import says_right
from flatline.training.trainer import Built


class OurSubject(TrlSubject):
    """What `flatline.training.trainer.build` made."""

    def __init__(
        self, built: Built, *, correct: str | None = None, gold: str | None = None
    ) -> None:
        answer = says_right(built.trainer.reward_func_names)
        super().__init__(built.trainer, correct=correct or answer, gold=gold)
        self._built = built
        self.live.rollouts = built.rollouts

    @property
    def ours(self) -> bool:
        return True

    @property
    def requested(self) -> Mapping[str, Any]:
        return self._built.config.to_dict()

    @cached_property
    def effective(self) -> Mapping[str, Any]:
        return effective(self.trainer, self._built.config)

    def oracle(self, problems: int = 16) -> Oracle:
        built = self._played_by_us("task.gold")
        return self._take(("oracle", problems), oracle.oracle, built, built.problems[:problems])

    def problems(self) -> Problems:
        training, heldout = self._built.problems, self._built.heldout
        named = (tuple(one.question for one in part) for part in (training, heldout))
        return Problems(training=next(named), heldout=next(named))

    def gold_turns(self, problems: int) -> GoldTurns:
        task = self._built.task
        if not task.tools:
            raise NotRecorded("task.gold")
        needed = np.array([len(task.gold(one)) for one in self._built.problems[:problems]])
        return GoldTurns(needed=needed, limit=self._built.config.max_turns)

    def solved(self, first: int, last: int) -> Floats:
        built = self._played_by_us("task.problems")
        return self._take(("solved", first, last), oracle.solved, built, first, last)

    def heldout_path(self, problems: int = 4) -> HeldoutPath:
        built = self._played_by_us("steps.heldout_reward")
        groups = range(problems * self.trainer.num_generations)
        given = (built, self._recorded, groups)
        return self._take(("heldout", problems), oracle.heldout_path, *given)

    def _hops(self) -> Mapping[str, int]:
        return {problem.id: problem.hops for problem in self._built.problems}

    def _played_by_us(self, needed: str) -> Built:
        """What only our engine can play."""
        if self._built.config.engine != "embedded":
            raise NotRecorded(needed)
        return self._built
