"""Serving on this machine: who may ask, how much, and how slowly.

`flatline ui` and `flatline serve` have this one guard.

    bind = bind_address("127.0.0.1", 8321, command="flatline ui")
    listen(guarded(app, hosts=bind.hosts, token=bind.token, max_body=64 * 1024), bind)
"""

from flatline.loopback.address import LOOPBACK, TOKEN_VARIABLE, Bind, bind_address
from flatline.loopback.guard import guarded
from flatline.loopback.server import listen

__all__ = ["LOOPBACK", "TOKEN_VARIABLE", "Bind", "bind_address", "guarded", "listen"]
