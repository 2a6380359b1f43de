"""Listening, with an end to every wait: for a request to arrive, and for an answer to be taken.

uvicorn waits for both without a limit, so a few hundred idle connections could keep everybody out.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from flatline.errors import needing
from flatline.loopback.address import Bind

if TYPE_CHECKING:
    from uvicorn import Config

AT_ONCE = 512
"""Connections; one more is answered with 503."""
SECONDS_TO_ASK = 10.0
"""For the head of a request, from the first byte of the connection or of the request."""
SECONDS_TO_TAKE = 30.0
"""For a client to take some of an answer that waits for it."""


def listen(app: ASGIApp, bind: Bind) -> None:
    """Serve until Ctrl-C."""
    with needing("A server", "serve"):
        import uvicorn
    uvicorn.Server(configured(app, bind)).run()


def configured(app: ASGIApp, bind: Bind, *, to_ask: float = SECONDS_TO_ASK) -> "Config":
    """Settings of the server. What a client says about proxies is not believed."""
    with needing("A server", "serve"):
        import uvicorn
    return uvicorn.Config(
        app,
        host=bind.host,
        port=bind.port,
        http=_patient_for(to_ask),
        ws="none",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=AT_ONCE,
        timeout_graceful_shutdown=3,
    )


def _patient_for(to_ask: float) -> type[asyncio.Protocol]:
    """uvicorn's own protocol, with the two limits."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        due: asyncio.TimerHandle | None = None
        stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self.due, self.stalled):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.stalled = self.loop.call_later(SECONDS_TO_TAKE, self.transport.abort)

        def resume_writing(self) -> None:
            if self.stalled is not None:
                self.stalled.cancel()
            super().resume_writing()

        def _watch(self) -> None:
            """The timer runs while a request has begun to arrive and is not there yet."""
            arriving = self.conn.their_state is h11.IDLE
            if arriving and self.due is None:
                self.due = self.loop.call_later(to_ask, self.transport.abort)
            elif not arriving and self.due is not None:
                self.due.cancel()
                self.due = None

    return Impatient
