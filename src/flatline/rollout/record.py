"""The record of one episode, token by token. Pure data: no torch."""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from flatline.tasks.base import Score


class Author(IntEnum):
    """Who wrote a token, known from how it came to be, never from parsing text."""

    PROMPT = 0
    """The conversation the model started from."""
    MODEL = 1
    """Sampled, the end-of-turn token included. Only these may be trained."""
    TOOL = 2
    """The text of a tool's observation."""
    TEMPLATE = 3
    """What the chat template puts around turns."""


class Finish(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    """The model ended a turn without a tool call."""
    TURN_LENGTH = "turn_length"
    """A turn reached its token limit before its end."""
    TURNS = "turns"
    """The turn limit was reached while the model was still calling tools."""
    CONTEXT = "context"
    """The next observation would not have left room in the context."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One turn of the model and what came back."""

    text: str
    """What the model wrote, without the end-of-turn token."""
    observations: list[str] = field(default_factory=list)
    """What its tool calls brought back; empty for the final turn."""
    documents: list[int] = field(default_factory=list)
    """Ids of the documents shown in the observations."""
    dropped: list[int] = field(default_factory=list)
    """Ids of the documents that were found, but left out to keep within the context."""


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One token-exact episode."""

    problem_id: str
    """The problem that was played."""
    sample: int
    """Which of the problem's plays this is, from 0."""
    prompt_ids: list[int]
    """Token ids of the rendered conversation and generation prompt."""
    completion_ids: list[int]
    """Every later token in order, whoever wrote it; sampled ids stand as they were sampled."""
    authors: list[Author]
    """One per completion token."""
    logprobs: list[float]
    """Per completion token, under the distribution really sampled from; 0.0 where not MODEL."""
    turns: list[Turn]
    """The same episode as text."""
    finish: Finish
    """Why it ended."""
    score: Score
    """Reward and its parts."""
    events: Counter[str]
    """Counts of `tool_calls`, `tool_errors`, `malformed_calls` and `malformed_answers`."""
    weight_version: int
    """Which delivery of weights produced it; 0 before the first."""

    @property
    def loss_mask(self) -> list[int]:
        """1 on the tokens the model wrote."""
        return [int(author is Author.MODEL) for author in self.authors]
