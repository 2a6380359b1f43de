"""The score of a conversation: its tool calls are played again in flatline's own episode.

Searching is deterministic, so the same calls find the same documents, and nothing has to be carried
from the tool server to the reward.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from flatline.rollout.toolcalls import parse_hermes
from flatline.tasks.base import BadToolCall, Episode, Score, ToolCall


class Said(NamedTuple):
    """One turn of the model."""

    text: str
    calls: Sequence[tuple[str, str]]
    """Names and arguments, the latter as the model wrote them."""


def played(episode: Episode, turns: Sequence[Said]) -> Score:
    """The score of an episode in which the model said this; its events are counted."""
    for turn in turns:
        for call in [_read(name, arguments) for name, arguments in turn.calls] + _unread(turn):
            episode.observe(call)
    finished = bool(turns) and not turns[-1].calls
    return episode.score(turns[-1].text if finished else None)


def with_thought(thought: str | None, text: str) -> str:
    """The message as the model wrote it; many servers take the thought out and give it apart."""
    return f"<think>{thought}</think>\n{text}" if thought else text


def _read(name: str, arguments: str) -> ToolCall | BadToolCall:
    try:
        value: Any = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return BadToolCall(text=arguments[:200], reason="the arguments are not a JSON object.")
    return ToolCall(name=name, arguments=value)


def _unread(turn: Said) -> list[ToolCall | BadToolCall]:
    """Calls that no server could read are left in the text."""
    return [call for call in parse_hermes(turn.text) if isinstance(call, BadToolCall)]
