"""Where a server listens, and what it asks of whoever comes.

On loopback only programs of this machine can connect, so no token is asked for unless one is set.
On any other address there is always a token: the one of the environment, or a fresh one.
"""

import ipaddress
import os
import secrets
import socket
from dataclasses import dataclass

from flatline.errors import ConfigError

LOOPBACK = "127.0.0.1"
TOKEN_VARIABLE = "FLATLINE_TOKEN"
"""In the environment and not on the command line, where every user of the machine could read it."""
SHORTEST = 16
"""Characters of a token; a shorter one can be guessed over a network."""
_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """An address to listen at."""

    host: str
    """An IP address of this machine."""
    port: int
    """Where to listen."""
    token: str | None
    """What every request has to carry; None asks for nothing."""
    given: bool = False
    """Whether the token is the user's own, which is never printed."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that a request may give this server; none means any, which only a token allows."""
        return (*_NAMES, _in_address(self.host)) if self.is_loopback else ()

    @property
    def address(self) -> str:
        """What to type into a browser, or to give a client as its base."""
        return f"http://{_in_address(self.host)}:{self.port}/"

    @property
    def link(self) -> str:
        """The same, with the token where there is one: a browser is let in by it and keeps it."""
        shown = f"${TOKEN_VARIABLE}" if self.given else self.token
        return f"{self.address}?token={shown}" if shown else self.address

    @property
    def warning(self) -> str:
        """What listening beyond this machine means; nothing on loopback."""
        if self.is_loopback:
            return ""
        return (
            f"{self.host} can be reached from other machines. Anyone who has the token can read "
            "all that is served here,\nand nothing is encrypted: anyone who sees the traffic sees "
            f"the token. On an open network, keep to {LOOPBACK} and\n"
            f"forward the port: ssh -L {self.port}:{LOOPBACK}:{self.port} THIS_MACHINE."
        )


def bind_address(host: str, port: int, *, command: str) -> Bind:
    """The address to listen at, checked: an address of this machine, free, with a fit token.

    `command` is what the user typed, without host and port, for the message that says what to type.
    """
    try:
        address = ipaddress.ip_address(LOOPBACK if host == "localhost" else host)
    except ValueError as error:
        raise ConfigError(
            f"{host!r} is not an IP address.\n"
            "A name may mean another address tomorrow, so only an address can be listened at.\n"
            f"Type `{command} --host {LOOPBACK}`."
        ) from error
    own = _token()
    token = own or (None if address.is_loopback else secrets.token_urlsafe(24))
    bind = Bind(host=str(address), port=port, token=token, given=own is not None)
    _refuse_taken(bind, command)
    return bind


def _token() -> str | None:
    token = os.environ.get(TOKEN_VARIABLE)
    fit = not token or (len(token) >= SHORTEST and token.isascii() and _is_plain(token))
    if not fit:
        raise ConfigError(
            f"{TOKEN_VARIABLE} has to be at least {SHORTEST} letters, digits, `-` or `_`.\n"
            "A short one can be guessed, and other characters do not survive an address.\n"
            f"Type `export {TOKEN_VARIABLE}={secrets.token_urlsafe(24)}`."
        )
    return token or None


def _is_plain(token: str) -> bool:
    return all(char.isalnum() or char in "-_" for char in token)


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _refuse_taken(bind: Bind, command: str) -> None:
    """Before anything is loaded: a port in use is found out at once."""
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind.host, bind.port))
        except OSError as error:
            other = bind.port + 1 if bind.port < 65535 else bind.port - 1
            raise ConfigError(
                f"Port {bind.port} of {bind.host} cannot be used: {error.strerror}.\n"
                "Another program, perhaps flatline itself, listens there, or the address is not "
                f"one of this machine.\nType `{command} --port {other}`."
            ) from error
