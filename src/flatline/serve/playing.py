"""The turns of one request, under way: between the thread that plays and the one that answers."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.requests import Request

from flatline.serve.answer import Written
from flatline.serve.batch import Piece, Turn, turn_of
from flatline.serve.errors import FAILED, RequestError
from flatline.serve.player import Player
from flatline.serve.request import Wanted


class Playing:
    """The turns of one request, under way."""

    def __init__(
        self,
        player: Player,
        prompt_ids: list[int],
        wanted: Wanted,
        *,
        ends: frozenset[int],
        room: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
        self._turns: list[Turn] = [
            turn_of(
                prompt_ids,
                sampling=wanted.sampling,
                room=room,
                ends=ends,
                tokenizer=player.tokenizer,
                stops=wanted.stops,
                seed=seed,
                sample=i,
                top=wanted.top,
                stream=wanted.stream,
                on_piece=self._listener(i),
            )
            for i in range(wanted.n)
        ]
        player.submit(self._turns)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces of all choices as they come, each with the number of its choice."""
        left = len(self._turns)
        try:
            while left:
                i, piece = await self._pieces.get()
                if piece.error is not None:
                    raise RequestError(piece.error, status=500, kind=FAILED)
                left -= piece.finish is not None
                yield i, piece
        finally:
            for turn in self._turns:
                turn.gone = True

    async def whole(self, request: Request) -> list[Written]:
        """All choices, ended. Nothing more is written for a client that has gone away."""
        written = asyncio.create_task(self._gathered())
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({written, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not written.done():
                raise RequestError("The client has gone away.", status=499)
            return written.result()
        finally:
            for task in (written, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, RequestError):
                    await task

    async def _gathered(self) -> list[Written]:
        all_written = [Written() for _ in self._turns]
        async for i, piece in self.pieces():
            all_written[i].add(piece)
        return all_written

    def _listener(self, i: int) -> Callable[[Piece], None]:
        def hear(piece: Piece) -> None:
            # The loop is closed where the server stops: nobody is left to be told.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, (i, piece))

        return hear


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
