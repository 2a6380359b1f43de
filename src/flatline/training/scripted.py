"""A scripted play of a problem, recorded as the rollout engine would have recorded it.

The script says what to write; the task's own tools answer. The tokens are those of a rollout in
which a model had written these texts: prompt, turn, what the template puts between turns, and so
on. Who wrote a token is known from how it came to be, so a loss on the model's tokens needs no
parsing.
"""

from flatline.errors import DataError
from flatline.rollout.chat import ChatFormat
from flatline.rollout.record import Author, Finish, Rollout, Turn
from flatline.tasks.base import Observation, Problem, Task, ToolCall


class ScriptedPlay:
    """One problem in play."""

    def __init__(self, chat: ChatFormat, task: Task, problem: Problem) -> None:
        self.problem = problem
        self.turns: list[Turn] = []
        """What was written so far and what came back."""
        self._chat = chat
        self._episode = task.episode(problem)
        self._prompt_ids = chat.prompt_ids(task.messages(problem))
        self._ids: list[int] = []
        self._authors: list[Author] = []

    def call(self, call: ToolCall, *, before: str = "") -> Observation:
        """One turn that calls a tool, and what the tool brought back."""
        text = before + self._chat.call_text(call)
        if self._chat.parse(text) != [call]:
            raise self._misread(text)
        self._write(text, last=False)
        seen = self._episode.observe(call)
        self.turns[-1].observations = [seen.text]
        self.turns[-1].documents = list(seen.documents)
        ids, authors = self._chat.suffix([seen.text], [call])
        self._ids += ids
        self._authors += authors
        return seen

    def finish(self, text: str) -> Rollout:
        """The last turn."""
        if self._chat.parse(text):
            raise self._misread(text)
        self._write(text, last=True)
        return Rollout(
            problem_id=self.problem.id,
            sample=0,
            prompt_ids=self._prompt_ids,
            completion_ids=self._ids,
            authors=self._authors,
            logprobs=[0.0] * len(self._ids),
            turns=self.turns,
            finish=Finish.ANSWERED,
            score=self._episode.score(text),
            events=self._episode.events,
            weight_version=0,
        )

    def _write(self, text: str, *, last: bool) -> None:
        ids = self._chat.turn_ids(text, last=last)
        self._ids += ids
        self._authors += [Author.MODEL] * len(ids)
        self.turns.append(Turn(text=text))

    def _misread(self, text: str) -> DataError:
        return DataError(
            f"The gold episode of problem {self.problem.id!r} holds {text[-80:]!r}, which would be "
            "read as something else.\nA model that imitates it would learn to write that.\n"
            "Leave the problem out."
        )
