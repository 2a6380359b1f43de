"""A real server on loopback, for tests that ask it as clients do."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from flatline.loopback import Bind
from flatline.loopback.server import configured


def a_bind(token: str | None = None) -> Bind:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Bind(host="127.0.0.1", port=probe.getsockname()[1], token=token)


@contextmanager
def listening(app: ASGIApp, bind: Bind, **patience: float) -> Iterator[str]:
    """The base address while the application is served."""
    server = uvicorn.Server(configured(app, bind, **patience))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield bind.address
    finally:
        server.should_exit = True
        thread.join(timeout=20)
