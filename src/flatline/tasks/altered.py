"""A task whose tool answers otherwise; all else is the task's own.

The model's own calls are run, counted and scored as ever. Only what it reads is exchanged, so a
difference of the reward is what the model makes of the text.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from flatline.tasks.base import (
    BadToolCall,
    Episode,
    Message,
    Observation,
    Problem,
    Score,
    Script,
    Task,
    ToolCall,
)

Reply = Callable[[Problem, int, Observation], Observation]
"""What is shown instead: the problem, how many calls were answered before, what was found."""


class AlteredEpisode(Episode):
    """One play in which every answered call is answered otherwise; errors stay as they are."""

    def __init__(self, inner: Episode, reply: Reply) -> None:
        super().__init__(inner.problem)
        self.events = inner.events
        self._inner = inner
        self._reply = reply
        self._answered = 0

    def observe(self, call: ToolCall | BadToolCall) -> Observation:
        before = self.events["tool_errors"] + self.events["malformed_calls"]
        found = self._inner.observe(call)
        if self.events["tool_errors"] + self.events["malformed_calls"] > before:
            return found
        shown = self._reply(self.problem, self._answered, found)
        self._answered += 1
        return shown

    def _run(self, call: ToolCall) -> Observation:
        return self._inner._run(call)

    def score(self, final: str | None) -> Score:
        return self._inner.score(final)


class Altered(Task):
    """A task whose tool output is exchanged."""

    def __init__(self, inner: Task, reply: Reply) -> None:
        self.inner = inner
        self.name = inner.name  # type: ignore[misc]
        self.tools = inner.tools  # type: ignore[misc]
        self._reply = reply

    def load(self, specs: str, *, split: str) -> list[Problem]:
        return self.inner.load(specs, split=split)

    def messages(self, problem: Problem) -> list[Message]:
        return self.inner.messages(problem)

    def episode(self, problem: Problem) -> Episode:
        return AlteredEpisode(self.inner.episode(problem), self._reply)

    def gold(self, problem: Problem) -> Script:
        return self.inner.gold(problem)

    def corruptions(self, problem: Problem) -> Mapping[str, Script]:
        return self.inner.corruptions(problem)


def gold_observations(task: Task, problem: Problem) -> list[Observation]:
    """What the calls of the gold script bring back, one by one.

    A retriever may miss what gold needs: where the task has one that cannot, that one is asked.
    """
    choose = getattr(task, "with_retriever", None)
    sure: Task = task if choose is None else choose("golden")
    episode = sure.episode(problem)
    calls = [step for step in sure.gold(problem) if not isinstance(step, str)]
    return [episode.observe(call) for call in calls]


def empty(problem: Problem, answered: int, found: Observation) -> Observation:
    """Nothing, whatever was found."""
    return replace(found, text="", documents=(), pieces=())
