"""Tasks, reward and gold check."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from flatline.tasks.base import Score
from flatline.tasks.check import play
from flatline.tasks.musique import Musique
from vf_musique.problems import as_data, from_data
from vf_musique.scoring import Said, played, with_thought
from vf_musique.tools import MusiqueState, MusiqueToolset

GOLDEN = "golden"


class MusiqueTaskConfig(vf.TaskConfig):
    retriever: str = "bm25"
    """bm25, semantic, hybrid or golden."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of reward parts; a part that is not named keeps flatline's."""


class MusiqueData(vf.TaskData):
    problem: dict[str, Any]
    """The problem with its documents."""
    answer: str
    """The gold answer."""


class MusiqueTask(vf.Task[MusiqueData, MusiqueState, MusiqueTaskConfig]):
    """One question."""

    @property
    def key(self) -> str:
        return str(self.data.id)

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.state.problem = self.data.problem
        trace.state.retriever = self.config.retriever

    @vf.reward(weight=1.0)
    async def combined(self, trace: vf.Trace) -> float:
        return self._score(trace).reward

    @vf.reward(weight=0.0)
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        """What `combined` is made of; without a weight of their own, so nothing counts twice."""
        return dict(self._score(trace).parts)

    @vf.metric
    async def hops(self, trace: vf.Trace) -> float:
        return float(self.data.problem["hops"])

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the gold play earns the maximum; its searches are meant for perfect retrieval."""
        problem = from_data(self.data.problem)
        task = self._task(GOLDEN)
        return play(task, problem, task.gold(problem)).reward == 1.0

    def _score(self, trace: vf.Trace) -> Score:
        episode = self._task(self.config.retriever).episode(from_data(self.data.problem))
        turns = [
            Said(
                with_thought(message.reasoning_content, message.content or ""),
                [(call.name, call.arguments) for call in message.tool_calls or []],
            )
            for message in trace.assistant_messages
        ]
        return played(episode, turns)

    def _task(self, retriever: str) -> Musique:
        return _task(retriever, tuple(sorted(self.config.weights.items())))


@lru_cache
def _task(retriever: str, weights: tuple[tuple[str, float], ...]) -> Musique:
    return Musique(retriever=retriever, weights=dict(weights))


class MusiqueConfig(vf.TasksetConfig):
    data: str = "lab"
    """flatline's dataset spec: `lab` (embedded), or `path,config,split[slice]`."""
    split: str = "validation"
    """Split to read where the spec names none."""
    noise: float = 1.0
    """Share of the other paragraphs that is kept."""
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()
    """Where the tool server runs."""
    task: MusiqueTaskConfig = MusiqueTaskConfig()


class MusiqueTaskset(vf.Taskset[MusiqueTask, MusiqueConfig]):
    """The problems, in flatline's order."""

    def load(self) -> Iterator[MusiqueTask]:
        task = Musique(noise=self.config.noise)
        for problem in task.load(self.config.data, split=self.config.split):
            system, user = task.messages(problem)
            data = MusiqueData(
                id=problem.id,
                name=problem.id,
                system_prompt=system["content"],
                prompt=user["content"],
                problem=as_data(problem),
                answer=problem.answer,
            )
            yield MusiqueTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config: MusiqueConfig) -> list[vf.Toolset]:
        return [MusiqueToolset(config.tools)]
