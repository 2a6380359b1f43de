"""Messages and tools -> token ids.

A client sends the whole conversation with every turn, as text. Rendered and encoded again, a turn
that the model wrote may come out as other tokens than those it sampled (another split of a word,
another blank in a tool call), and whoever trains on it trains on tokens nobody drew. So the server
keeps the ids of the turns it wrote: a conversation that goes on with tool answers gets the ids it
had, and behind them what the chat template puts there. All else is rendered.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from flatline.errors import ModelError
from flatline.rollout.chat import ChatFormat
from flatline.rollout.toolcalls import Call
from flatline.serve.errors import RequestError
from flatline.serve.request import ChatRequest
from flatline.tasks.base import Tool, ToolCall

FORMATS_KEPT = 32
"""Sets of tools whose chat format stays in memory."""
TOKENS_KEPT = 8_000_000
"""Of the turns that are remembered, in all; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTool(Tool):
    """A tool whose schema the client wrote; the template shows it as it is."""

    given: Mapping[str, Any] = field(hash=False)
    """The schema."""

    def schema(self) -> dict[str, Any]:
        return dict(self.given)


class Prompt(NamedTuple):
    """What the model reads before it writes."""

    ids: list[int]
    continued: bool
    """Whether the ids of the model's earlier turns are the ones it sampled."""


class Conversations:
    """Renders conversations for one tokenizer, and remembers how they went on."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._format = lru_cache(FORMATS_KEPT)(self._make_format)
        self._written: OrderedDict[bytes, array[int]] = OrderedDict()
        self._kept = 0
        self._special = [
            str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special
        ]

    def format(self, tools: Sequence[Mapping[str, Any]]) -> ChatFormat:
        """How conversations with these tools are written."""
        try:
            return self._format(json.dumps(tools))
        except ModelError as error:
            raise RequestError(str(error), param="tools") from None

    def prompt(self, request: ChatRequest) -> Prompt:
        """The ids of the conversation so far and the opening of the model's turn."""
        chat = self.format(request.tools)
        return self._continued(request, chat) or Prompt(self._rendered(request, chat), False)

    def remember(self, request: ChatRequest, answer: Mapping[str, Any], ids: Sequence[int]) -> None:
        """Note which tokens a conversation has up to the end of the answer."""
        key = _key(request.tools, [*request.messages, answer])
        self._kept += len(ids) - len(self._written.pop(key, ()))
        self._written[key] = array("I", ids)
        while self._kept > TOKENS_KEPT:
            self._kept -= len(self._written.popitem(last=False)[1])

    def _continued(self, request: ChatRequest, chat: ChatFormat) -> Prompt | None:
        """The ids of a turn that we wrote, and behind them the answers of its tools."""
        messages = list(request.messages)
        answers: list[Mapping[str, Any]] = []
        while messages and messages[-1]["role"] == "tool":
            answers.insert(0, messages.pop())
        calls = messages[-1].get("tool_calls", []) if messages else []
        if not answers or [a.get("tool_call_id") for a in answers] != [c["id"] for c in calls]:
            return None
        ids = self._written.get(_key(request.tools, messages))
        if ids is None:
            return None
        suffix, _ = chat.suffix([answer["content"] for answer in answers], _named(calls))
        return Prompt([*ids, *suffix], True)

    def _rendered(self, request: ChatRequest, chat: ChatFormat) -> list[int]:
        for i, message in enumerate(request.messages):
            self._refuse_control_tokens(message.get("tool_calls"), i)
        try:
            return chat.prompt_ids([dict(message) for message in request.messages])
        except ModelError as error:
            raise RequestError(str(error), param="messages") from None

    def _refuse_control_tokens(self, calls: Any, i: int) -> None:
        """The template writes arguments itself, so a control token in them could not be undone."""
        written = json.dumps(calls, ensure_ascii=False) if calls else ""
        found = next((token for token in self._special if token in written), None)
        if found is not None:
            raise RequestError(
                f"messages[{i}].tool_calls spells the control token {found!r}.\n"
                "Encoded, it would end the turn and let the text after it speak as someone else.\n"
                "Take it out of the arguments.",
                param=f"messages[{i}].tool_calls",
            )

    def _make_format(self, tools: str) -> ChatFormat:
        return ChatFormat(self._tokenizer, [_tool(given) for given in json.loads(tools)])


def _tool(given: Mapping[str, Any]) -> GivenTool:
    function = given["function"]
    return GivenTool(
        name=function["name"],
        description=str(function.get("description") or ""),
        parameters={},
        given=given,
    )


def _named(calls: Sequence[Mapping[str, Any]]) -> list[Call]:
    return [ToolCall(name=call["function"]["name"], arguments={}) for call in calls]


def _key(tools: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> bytes:
    text = json.dumps([tools, messages], sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
