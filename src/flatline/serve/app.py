"""The addresses of the server.

POST /v1/chat/completions     the next turn of a conversation, with tools, whole or streamed
POST /v1/completions          what follows a text or token ids
POST /inference/v1/generate   token ids in, token ids out (vLLM's, which prime-rl samples from)
GET  /v1/models               the one model, its context and its weight version
POST /update_weights          new weights from a folder: {"weight_dir": "runs/x/checkpoint-20"}
GET  /health
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flatline.errors import FlatlineError
from flatline.serve import request as asked
from flatline.serve.answer import Teller, Written, chat_choice, ids_choice, text_choice
from flatline.serve.conversation import Conversations
from flatline.serve.errors import FAILED, RequestError
from flatline.serve.messages import message_of
from flatline.serve.player import Player
from flatline.serve.playing import Playing
from flatline.serve.stream import ChatStream, TextStream, events
from flatline.text import visible

LAB = "lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The model behind the addresses."""

    name: str
    """What clients call it."""
    player: Player
    """Plays its turns."""
    tokenizer: Any
    """Encodes prompts; the player has its own, for the two run in different threads."""
    conversations: Conversations
    """Renders messages."""
    ends: frozenset[int]
    """Tokens that the model's own settings end a turn with."""
    max_context: int
    """Tokens of prompt and answer together."""
    load: Callable[[str], Any]
    """Loads a model from a folder."""


def application(served: Served) -> Starlette:
    server = _Server(served)

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        yield
        served.player.close()

    routes = [
        Route("/v1/chat/completions", _safe(server.chat), methods=["POST"]),
        Route("/v1/completions", _safe(server.text), methods=["POST"]),
        Route("/inference/v1/generate", _safe(server.ids), methods=["POST"]),
        Route("/v1/models", _safe(server.models)),
        Route("/update_weights", _safe(server.update_weights), methods=["POST"]),
        Route("/health", _safe(server.health)),
    ]
    handlers: Any = {HTTPException: _nowhere, Exception: _failed}
    return Starlette(routes=routes, lifespan=running, exception_handlers=handlers)


def _safe(handle: Callable[[Request], Awaitable[Response]]) -> Any:
    """Errors as clients read them: the reason and never a traceback."""

    async def handled(request: Request) -> Response:
        try:
            return await handle(request)
        except RequestError as error:
            refused = error
        except RecursionError:
            refused = RequestError("The request is nested too deeply.\nSend a flatter one.")
        return JSONResponse(refused.to_json(), status_code=refused.status)

    return handled


async def _nowhere(request: Request, error: HTTPException) -> Response:
    found = RequestError(
        f"{request.method} {request.url.path[:200]}: {error.detail}.\n"
        "Give clients the base address http://HOST:PORT/v1; GET /v1/models says what is served.",
        status=error.status_code,
    )
    return JSONResponse(found.to_json(), status_code=found.status)


async def _failed(request: Request, error: Exception) -> Response:
    """A bug of ours: the client is told that much, the traceback goes to the server's terminal."""
    told = RequestError("The server could not answer this request.", status=500, kind=FAILED)
    return JSONResponse(told.to_json(), status_code=told.status)


class _Server:
    """One method for each address."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "weight_version": self._served.player.weight_version})

    async def models(self, request: Request) -> Response:
        card = {
            "id": self._served.name,
            "object": "model",
            "created": 0,
            "owned_by": "flatline",
            "max_model_len": self._served.max_context,
            "weight_version": self._served.player.weight_version,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def chat(self, request: Request) -> Response:
        made = asked.chat_request(asked.body_of(await request.body()))
        self._refuse_other_model(made.wanted)
        chat = self._served.conversations.format(made.tools)
        prompt = self._served.conversations.prompt(made)
        teller = self._teller("chat.completion", prompt.ids, made.wanted)
        play = self._play(prompt.ids, made.wanted, chat.eos_ids)

        def note(message: dict[str, Any], written: Written) -> None:
            if written.stop is None and message.get("tool_calls"):
                answer = message_of(message, "answer")
                self._served.conversations.remember(made, answer, [*prompt.ids, *written.ids])

        if made.wanted.stream:
            return events(play, ChatStream(teller, chat, made.wanted, prompt.ids, note))
        all_written = await play.whole(request)
        choices = [
            chat_choice(teller, chat, i, written, logprobs=made.wanted.logprobs)
            for i, written in enumerate(all_written)
        ]
        for choice, written in zip(choices, all_written, strict=True):
            note(choice["message"], written)
        answer = teller.whole(choices, all_written)
        return JSONResponse({**answer, "continued": prompt.continued})

    async def text(self, request: Request) -> Response:
        made = asked.text_request(asked.body_of(await request.body()))
        self._refuse_other_model(made.wanted)
        prompt_ids = self._encoded(made.prompt)
        teller = self._teller("text_completion", prompt_ids, made.wanted)
        play = self._play(prompt_ids, made.wanted, self._plain_ends())
        if made.wanted.stream:
            return events(play, TextStream(teller, made.wanted, prompt_ids))
        all_written = await play.whole(request)
        choices = [
            text_choice(teller, i, written, logprobs=made.wanted.logprobs)
            for i, written in enumerate(all_written)
        ]
        return JSONResponse(teller.whole(choices, all_written))

    async def ids(self, request: Request) -> Response:
        made = asked.ids_request(asked.body_of(await request.body()))
        self._refuse_other_model(made.wanted)
        if made.wanted.stream:
            raise RequestError("Token ids are given whole.\nLeave `stream` out.", param="stream")
        prompt_ids = self._encoded(made.ids)
        play = self._play(prompt_ids, made.wanted, self._plain_ends() | made.ends)
        all_written = await play.whole(request)
        choices = [ids_choice(i, written) for i, written in enumerate(all_written)]
        answer = self._teller("generate", prompt_ids, made.wanted).whole(choices, all_written)
        return JSONResponse({**answer, "request_id": answer["id"]})

    async def update_weights(self, request: Request) -> Response:
        body = asked.body_of(await request.body())
        folder = body.get("weight_dir")
        if not isinstance(folder, str) or not (folder == LAB or os.path.isdir(folder)):
            raise RequestError(
                f"`weight_dir` is {str(folder)[:200]!r}, which is no folder on this machine.\n"
                "Give a folder with config.json and safetensors, as the server sees it.",
                param="weight_dir",
            )
        model = await self._loaded(folder)
        try:
            version = await asyncio.wrap_future(self._served.player.update(model))
        except FlatlineError as error:
            raise RequestError(str(error), param="weight_dir") from None
        return JSONResponse({"status": "ok", "weight_version": version})

    async def _loaded(self, folder: str) -> Any:
        try:
            return await asyncio.to_thread(self._served.load, folder)
        except FlatlineError as error:
            told = str(error)
        except Exception as error:  # a damaged checkpoint fails in as many ways as there are files
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            told = (
                f"The weights in {folder[:200]!r} cannot be loaded: {first[:300]}\n"
                "The server keeps the weights it has. Save the checkpoint again, whole, and resend."
            )
        raise RequestError(visible(told), param="weight_dir")

    def _refuse_other_model(self, wanted: asked.Wanted) -> None:
        name = self._served.name
        if wanted.model not in (None, name):
            raise RequestError(
                f"There is no model {wanted.model[:100]!r} here.\nSend `model: {name!r}`.",
                status=404,
                param="model",
                code="model_not_found",
            )

    def _encoded(self, prompt: str | tuple[int, ...]) -> list[int]:
        if isinstance(prompt, str):
            # Half a surrogate pair cannot be encoded: a question mark, as in a conversation.
            text = prompt.encode("utf-8", "replace").decode()
            return list(self._served.tokenizer(text, verbose=False)["input_ids"])
        size = len(self._served.tokenizer)
        if max(prompt) >= size:
            raise RequestError(
                f"Token id {max(prompt)} is not one of the model's {size}.", param="prompt"
            )
        return list(prompt)

    def _plain_ends(self) -> frozenset[int]:
        own = self._served.tokenizer.eos_token_id
        return self._served.ends | (frozenset() if own is None else {own})

    def _teller(self, kind: str, prompt_ids: Sequence[int], wanted: asked.Wanted) -> Teller:
        served = self._served
        return Teller(kind, served.name, served.tokenizer, prompt_ids, by_id=wanted.by_id)

    def _play(self, prompt_ids: list[int], wanted: asked.Wanted, ends: frozenset[int]) -> Playing:
        room = self._served.max_context - len(prompt_ids)
        if room < 1:
            raise RequestError(
                f"The prompt has {len(prompt_ids)} tokens, and the context has "
                f"{self._served.max_context}.\nNothing could be written. Shorten the conversation.",
                param="messages",
                code="context_length_exceeded",
            )
        if wanted.max_tokens is not None:
            room = min(room, wanted.max_tokens)
        ends |= self._served.ends
        return Playing(self._served.player, prompt_ids, wanted, ends=ends, room=room)
