"""What a task is: problems, tools and scoring. It knows nothing of models or tokens.

A `Task` turns a dataset spec into `Problem`s and a problem into an `Episode`. The episode answers
tool calls with observations and scores the final message. Everything a model can get wrong (an
unknown tool, a missing argument, no answer tag) is an observation or a note plus a counted event,
never an exception and never a silent zero.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

Message = dict[str, Any]
"""One chat message in the format of Hugging Face chat templates."""

ANSWER = "exact_match"
"""Name of the part that says whether the answer is right; every task has it."""
COMBINED = "combined"
"""Name of the weighted sum among the reward parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question with its answer."""

    id: str
    """Unique inside one loaded dataset; rollouts of one step that share it form a group."""
    question: str
    """The user's message."""
    answer: str
    """The gold answer."""
    hops: int
    """How many dependent steps the answer needs; results are broken down by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call."""

    name: str
    """Name the model writes."""
    description: str
    """What it does, in one sentence; the chat template shows it to the model."""
    parameters: Mapping[str, Mapping[str, Any]]
    """JSON schema of each: a `string`, `integer` or `number`, optional if it has a `default`."""

    @property
    def required(self) -> list[str]:
        return [name for name, schema in self.parameters.items() if "default" not in schema]

    def schema(self) -> dict[str, Any]:
        """The function schema that chat templates and inference servers expect."""
        properties = {name: dict(schema) for name, schema in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": self.required}
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that could be read."""

    name: str
    """As the model wrote it; it may not exist."""
    arguments: Mapping[str, Any]
    """As the model wrote them; types are not checked yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadToolCall:
    """Something that was meant as a tool call and could not be read."""

    text: str
    """What the model wrote."""
    reason: str
    """Why it could not be read, in words the model can act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of one episode and where it comes from."""

    reward: float
    """Weighted mean of the parts, between 0 and 1."""
    parts: Mapping[str, float]
    """Every part that applies to this problem, each between 0 and 1."""
    notes: tuple[str, ...] = ()
    """What was malformed in the final message, in words."""


Script = Sequence[ToolCall | BadToolCall | str]
"""A scripted play: tool calls, then (unless the play is empty) one final message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a tool call brought back."""

    text: str
    """The tool message the model reads."""
    documents: tuple[int, ...] = ()
    """Ids of the documents shown in it, for tasks that show documents."""
    pieces: tuple[str, ...] = ()
    """The text of each document; `text` is their lines. Empty where it cannot be taken apart."""

    def without_last(self) -> "Observation":
        """The same with one document less: the last, which fits the query least."""
        pieces = self.pieces[:-1]
        return Observation(
            text="\n".join(pieces), documents=self.documents[: len(pieces)], pieces=pieces
        )


class Episode(ABC):
    """One play of one problem."""

    tools: ClassVar[tuple[Tool, ...]] = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.events: Counter[str] = Counter()
        """Counts of `tool_calls`, `tool_errors`, `malformed_calls` and `malformed_answers`."""

    def observe(self, call: ToolCall | BadToolCall) -> Observation:
        """Answer one call. What is wrong with it is the observation, so the model can fix it."""
        if isinstance(call, BadToolCall):
            self.events["malformed_calls"] += 1
            return Observation(text=f"Error: {call.reason}")
        problem_with_it = _fault_in(call, self.tools)
        if problem_with_it:
            self.events["tool_errors"] += 1
            return Observation(text=f"Error: {problem_with_it}")
        self.events["tool_calls"] += 1
        return self._run(call)

    @abstractmethod
    def _run(self, call: ToolCall) -> Observation:
        """Run a call whose name and argument types were checked."""

    @abstractmethod
    def score(self, final: str | None) -> Score:
        """Score the final message; `None` when the model never gave one."""


class Task(ABC):
    """Problems of one kind. Options (retriever, weights, ...) are arguments of its constructor."""

    name: ClassVar[str]
    tools: ClassVar[tuple[Tool, ...]] = ()

    @abstractmethod
    def load(self, specs: str, *, split: str) -> list[Problem]:
        """Problems of a dataset spec; `split` is used where the spec names none."""

    @abstractmethod
    def messages(self, problem: Problem) -> list[Message]:
        """The conversation the model starts from."""

    @abstractmethod
    def episode(self, problem: Problem) -> Episode:
        """A fresh play of the problem."""

    @abstractmethod
    def gold(self, problem: Problem) -> Script:
        """A script that must earn the maximum."""

    @abstractmethod
    def corruptions(self, problem: Problem) -> Mapping[str, Script]:
        """Scripts that must earn less than gold, by what is wrong with them."""


@dataclass(slots=True)
class Weights:
    """Weights of the reward parts; a part that does not apply to a problem is left out."""

    parts: Mapping[str, float] = field(default_factory=dict)

    def combine(self, parts: Mapping[str, float]) -> float:
        """The weighted mean; 0 where no part that applies has a weight."""
        total = sum(self.parts[name] for name in parts)
        weighted = sum(self.parts[name] * value for name, value in parts.items())
        return weighted / total if total else 0.0


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
}


def _fault_in(call: ToolCall, tools: Sequence[Tool]) -> str | None:
    """What is wrong with a call's name or arguments, in words the model can act on."""
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        known = ", ".join(tool.name for tool in tools) or "no tools in this task"
        return f"there is no tool {call.name!r}. Known: {known}."
    for name in tool.required:
        if name not in call.arguments:
            return f"{tool.name} needs the argument {name!r}."
    for name, value in call.arguments.items():
        if name not in tool.parameters:
            return f"{tool.name} has no argument {name!r}. It takes: {', '.join(tool.parameters)}."
        expected = tool.parameters[name]["type"]
        if isinstance(value, bool) or not isinstance(value, _TYPES[expected]):
            return f"{tool.name} needs {name!r} as {expected}, got {type(value).__name__}."
    return None
