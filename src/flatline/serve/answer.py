"""What was sampled -> OpenAI's shape, whole or in pieces.

Every answer carries what a trainer needs besides OpenAI's fields, under vLLM's names:
`prompt_token_ids`, per choice `token_ids` (all that were sampled, the end of the turn included),
and `weight_version`.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from uuid import uuid4

from flatline.rollout.chat import ChatFormat
from flatline.serve.batch import STOP, Likely, Piece
from flatline.serve.spelling import HALF
from flatline.tasks.base import BadToolCall, ToolCall

_OPENING = "<tool_call>"
_WHOLE = ("{", "<|python_tag|>")
"""How a message starts that may be a call as a whole (Llama 3)."""


@dataclass(slots=True, kw_only=True)
class Written:
    """All that one choice has gained."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likely: list[list[Likely]] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None
    weight_version: int = 0

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        self.likely += piece.likely
        self.finish, self.stop = piece.finish, piece.stop
        self.weight_version = piece.weight_version


class Teller:
    """Writes the answers to one request."""

    def __init__(
        self,
        kind: str,
        model: str,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        *,
        by_id: bool = False,
    ) -> None:
        prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
        self._id = f"{prefix}-{uuid4().hex}"
        self._kind = kind
        self._model = model
        self._created = int(time.time())
        self._tokenizer = tokenizer
        self._prompt_ids = list(prompt_ids)
        self._by_id = by_id

    def head(self, *, piece: bool, version: int) -> dict[str, Any]:
        """What an answer or a piece of one starts with."""
        return {
            "id": self._id,
            "object": f"{self._kind}.chunk" if piece and "chat" in self._kind else self._kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": f"flatline-w{version}",
            "weight_version": version,
        }

    def whole(self, choices: list[dict[str, Any]], all_written: Sequence[Written]) -> Any:
        version = all_written[0].weight_version
        return {
            **self.head(piece=False, version=version),
            "choices": choices,
            "usage": self.usage(all_written),
            "prompt_token_ids": self._prompt_ids,
        }

    def usage(self, all_written: Sequence[Written]) -> dict[str, int]:
        written = sum(len(each.ids) for each in all_written)
        return {
            "prompt_tokens": len(self._prompt_ids),
            "completion_tokens": written,
            "total_tokens": len(self._prompt_ids) + written,
        }

    def chat_logprobs(self, part: "Written | Piece") -> dict[str, Any]:
        """Log-probs as chat completions have them."""
        likely = part.likely or [[] for _ in part.ids]
        rows = zip(part.ids, part.logprobs, likely, strict=True)
        content = [
            {
                **self._token(id, logprob),
                "top_logprobs": [self._token(each.id, each.logprob) for each in best],
            }
            for id, logprob, best in rows
        ]
        return {"content": content, "refusal": None}

    def text_logprobs(self, part: "Written | Piece") -> dict[str, Any]:
        """Log-probs as plain completions have them."""
        tokens = [self._spelled(id) for id in part.ids]
        starts = list(accumulate(map(len, tokens), initial=0))[:-1]
        return {
            "tokens": tokens,
            "token_logprobs": part.logprobs,
            "top_logprobs": [
                {self._spelled(each.id): each.logprob for each in best} for best in part.likely
            ]
            or None,
            "text_offset": starts,
        }

    def _token(self, id: int, logprob: float) -> dict[str, Any]:
        text = self._spelled(id)
        # Half a character cannot be told from the text of its token.
        data = None if HALF in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": data}

    def _spelled(self, id: int) -> str:
        if self._by_id:
            return f"token_id:{id}"
        return str(self._tokenizer.decode([id], clean_up_tokenization_spaces=False))


def chat_choice(
    teller: Teller, chat: ChatFormat, index: int, written: Written, *, logprobs: bool
) -> dict[str, Any]:
    """One choice of a chat completion, its tool calls read."""
    message, unread = message_from(chat, written)
    return {
        "index": index,
        "message": message,
        "logprobs": teller.chat_logprobs(written) if logprobs else None,
        "finish_reason": "tool_calls" if message.get("tool_calls") else written.finish,
        "stop_reason": written.stop,
        "token_ids": written.ids,
        **({"unread_tool_calls": unread} if unread else {}),
    }


def text_choice(teller: Teller, index: int, written: Written, *, logprobs: bool) -> dict[str, Any]:
    """One choice of a plain completion."""
    return {
        "index": index,
        "text": written.text,
        "logprobs": teller.text_logprobs(written) if logprobs else None,
        "finish_reason": written.finish,
        "stop_reason": written.stop,
        "token_ids": written.ids,
    }


def ids_choice(index: int, written: Written) -> dict[str, Any]:
    """One choice of a request by token ids, as vLLM's `/inference/v1/generate` gives it."""
    pairs = zip(written.ids, written.logprobs, strict=True)
    content = [{"token": f"token_id:{id}", "logprob": logprob} for id, logprob in pairs]
    return {
        "index": index,
        "token_ids": written.ids,
        "logprobs": {"content": content},
        "finish_reason": written.finish,
    }


def message_from(chat: ChatFormat, written: Written) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The assistant's message, and why what was meant as a call could not be read."""
    ended = written.finish == STOP
    calls = chat.parse(written.text) if ended else []
    good = [call for call in calls if isinstance(call, ToolCall)]
    bad = [call for call in calls if isinstance(call, BadToolCall)]
    message: dict[str, Any] = {"role": "assistant", "content": written.text}
    if good:
        # What could not be read stays readable: it is the only trace of it.
        content = written.text if bad else _before_calls(written.text)
        message = {"role": "assistant", "content": content or None}
        message["tool_calls"] = [_call(call) for call in good]
    return message, [{"text": call.text, "reason": call.reason} for call in bad]


def sendable(text: str, *, tools: bool) -> int:
    """Characters of an unfinished turn that are certainly no part of a tool call."""
    if not tools:
        return len(text)
    if text.lstrip().startswith(_WHOLE) or not text.strip():
        return 0
    at = text.find(_OPENING)
    until = len(text) if at < 0 else at
    for size in range(min(until, len(_OPENING)), 0, -1):
        if _OPENING.startswith(text[until - size : until]):
            until -= size
            break
    # Blanks in front of a call are not part of what is said.
    return len(text[:until].rstrip())


def call_pieces(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls as a stream has them: numbered."""
    return [{"index": i, **call} for i, call in enumerate(calls)]


def _before_calls(text: str) -> str:
    """What was said before the first call; calls in a closed thought are part of the thought."""
    at = text.find(_OPENING, max(text.rfind("</think>"), 0))
    return text[: max(at, 0)].rstrip()


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}
