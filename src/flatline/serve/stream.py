"""Answers in pieces, as server-sent events.

Text goes out as it is written. Where tools were given, whatever may be a call is held back until
the turn has ended and the call was read; each call then goes out in one piece.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Protocol

from starlette.responses import Response, StreamingResponse

from flatline.rollout.chat import ChatFormat
from flatline.serve.answer import Teller, Written, call_pieces, message_from, sendable
from flatline.serve.batch import Piece
from flatline.serve.errors import RequestError
from flatline.serve.playing import Playing
from flatline.serve.request import Wanted

DONE = "[DONE]"
Note = Callable[[dict[str, Any], Written], None]
"""Is told the message of a choice that has ended."""


class Stream(Protocol):
    """Turns pieces of turns into pieces of an answer."""

    def begin(self) -> Iterator[dict[str, Any]]:
        """What goes out before anything was written."""

    def piece(self, i: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """What goes out for a piece of choice `i`."""

    def end(self) -> Iterator[dict[str, Any]]:
        """What goes out when all choices have ended."""


def events(play: Playing, stream: Stream) -> Response:
    async def lines() -> AsyncIterator[str]:
        try:
            for made in stream.begin():
                yield _event(made)
            async for i, piece in play.pieces():
                for made in stream.piece(i, piece):
                    yield _event(made)
            for made in stream.end():
                yield _event(made)
        except RequestError as error:
            # The status went out long ago; clients read an error inside the stream.
            yield _event(error.to_json())
        yield f"data: {DONE}\n\n"

    return StreamingResponse(
        lines(), media_type="text/event-stream", headers={"cache-control": "no-cache"}
    )


def _event(made: dict[str, Any]) -> str:
    return f"data: {json.dumps(made, ensure_ascii=False)}\n\n"


class _Pieces:
    """What both kinds of stream share."""

    def __init__(self, teller: Teller, wanted: Wanted, prompt_ids: Sequence[int]) -> None:
        self._teller = teller
        self._wanted = wanted
        self._prompt_ids = list(prompt_ids)
        self._written = [Written() for _ in range(wanted.n)]

    def end(self) -> Iterator[dict[str, Any]]:
        if self._wanted.stream_usage:
            version = self._written[0].weight_version
            head = self._teller.head(piece=True, version=version)
            yield {**head, "choices": [], "usage": self._teller.usage(self._written)}

    def _chunk(self, i: int, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        head = self._teller.head(piece=True, version=self._written[i].weight_version)
        choice = {"index": i, "logprobs": None, "finish_reason": None, **fields}
        return {**head, **more, "choices": [choice]}


class ChatStream(_Pieces):
    """A chat completion in pieces."""

    def __init__(
        self,
        teller: Teller,
        chat: ChatFormat,
        wanted: Wanted,
        prompt_ids: Sequence[int],
        note: Note,
    ) -> None:
        super().__init__(teller, wanted, prompt_ids)
        self._chat = chat
        self._note = note
        self._sent = [0] * wanted.n

    def begin(self) -> Iterator[dict[str, Any]]:
        for i in range(self._wanted.n):
            delta = {"role": "assistant", "content": ""}
            yield self._chunk(i, {"delta": delta}, prompt_token_ids=self._prompt_ids)

    def piece(self, i: int, piece: Piece) -> Iterator[dict[str, Any]]:
        written = self._written[i]
        written.add(piece)
        message, _ = message_from(self._chat, written)
        text = message["content"] or ""
        if piece.finish is None:
            text = text[: sendable(text, tools=bool(self._chat.tools))]
        new, self._sent[i] = text[self._sent[i] :], max(self._sent[i], len(text))
        fields: dict[str, Any] = {"delta": {"content": new} if new else {}}
        fields["token_ids"] = piece.ids
        if self._wanted.logprobs:
            fields["logprobs"] = self._teller.chat_logprobs(piece)
        yield self._chunk(i, fields)
        if piece.finish is not None:
            yield from self._last(i, message, written)

    def _last(self, i: int, message: dict[str, Any], written: Written) -> Iterator[dict[str, Any]]:
        calls = message.get("tool_calls", [])
        for call in call_pieces(calls):
            yield self._chunk(i, {"delta": {"tool_calls": [call]}})
        self._note(message, written)
        finish = "tool_calls" if calls else written.finish
        yield self._chunk(i, {"delta": {}, "finish_reason": finish, "stop_reason": written.stop})


class TextStream(_Pieces):
    """A plain completion in pieces."""

    def begin(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def piece(self, i: int, piece: Piece) -> Iterator[dict[str, Any]]:
        self._written[i].add(piece)
        fields: dict[str, Any] = {"text": piece.text, "token_ids": piece.ids}
        if self._wanted.logprobs:
            fields["logprobs"] = self._teller.text_logprobs(piece)
        fields |= {"finish_reason": piece.finish, "stop_reason": piece.stop}
        yield self._chunk(i, fields, prompt_token_ids=self._prompt_ids)
