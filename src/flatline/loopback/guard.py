"""Who is let in. A browser on this machine runs pages of strangers, and they can ask a server here.

- Host: a site that points its own name at 127.0.0.1 (DNS rebinding) still says its own name.
- Origin and Sec-Fetch-Site: a page of another site cannot ask at all; a link to a page works.
- Token: by `Authorization: Bearer`, or once as `?token=`, which a browser keeps as a cookie.
- Body: read whole before the application sees it, up to a size and within a time.
"""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Callable, Collection
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 20.0
"""Time that a body may take to arrive."""
_SAFE = ("GET", "HEAD")
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]{0,5})?")
Refusal = Callable[[int, str], Response]
"""From a status and a reason to the answer in the shape that the clients of a server know."""


class Refused(Exception):
    """A request that does not reach the application."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def guarded(
    app: ASGIApp,
    *,
    hosts: Collection[str],
    token: str | None,
    max_body: int,
    body_seconds: float = BODY_SECONDS,
    refusal: Refusal | None = None,
) -> ASGIApp:
    """The application behind the guard. No `hosts` means any, and then there must be a token."""
    if not hosts and not token:
        raise ValueError("a server that answers to any host name needs a token")
    return _Guard(app, hosts, token, max_body, body_seconds, refusal or _plain)


class _Guard:
    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        token: str | None,
        max_body: int,
        body_seconds: float,
        refusal: Refusal,
    ) -> None:
        self._app, self._hosts, self._token = app, frozenset(hosts), token
        self._max_body, self._body_seconds, self._refusal = max_body, body_seconds, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            _check_origin(headers, scope["method"])
            if self._token and not _carries(headers, self._token):
                await _welcome(scope, self._token)(scope, receive, send)
                return
            received = await self._body(headers, receive)
        except Refused as error:
            answer = self._refusal(error.status, error.reason)
            # The rest of a refused body is not read: the connection cannot be used again.
            answer.headers["connection"] = "close"
            await answer(scope, receive, send)
            return
        if received is not None:
            await self._app(scope, _replayed(received, receive), send)

    def _check_host(self, headers: Headers) -> None:
        said = headers.getlist("host")
        name = _without_port(said[0]) if len(said) == 1 else ""
        if not name or (self._hosts and name not in self._hosts):
            raise Refused(400, "This server does not answer to that host name.")

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """All of the body; None where the client has gone."""
        said = headers.get("content-length", "0")
        if said.isascii() and said.isdigit() and int(said[:20]) > self._max_body:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._max_body:
                        raise self._too_large()
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError as error:
            reason = f"The request took longer than {self._body_seconds:g} seconds to arrive."
            raise Refused(408, reason) from error

    def _too_large(self) -> Refused:
        return Refused(413, f"A request may have at most {self._max_body:,} bytes.")


def _check_origin(headers: Headers, method: str) -> None:
    """Every browser says where a request that could change or read something comes from."""
    host = headers.get("host", "")
    if any(_place_of(origin) != host for origin in headers.getlist("origin")):
        raise Refused(403, "A page of another site may not ask this server.")
    follows_link = method in _SAFE and headers.get("sec-fetch-mode") == "navigate"
    elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if elsewhere and not follows_link:
        raise Refused(403, "A page of another site may not ask this server.")


def _place_of(origin: str) -> str:
    """Host and port of an origin; nothing for `null` and for what is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _without_port(host: str) -> str:
    """The name of a host; nothing for what is none."""
    found = _HOST.fullmatch(host)
    return found[1].lower() if found else ""


def _carries(headers: Headers, token: str) -> bool:
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and _same(given.strip(), token):
        return True
    kept = cookie_parser(headers.get("cookie", "")).get(_cookie(token), "")
    return _same(kept, token)


def _welcome(scope: Scope, token: str) -> Response:
    """A browser that brings the token in the address gets a cookie, and the address without it."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = [value for key, value in query if key == "token"]
    if scope["method"] not in _SAFE or len(given) != 1 or not _same(given[0], token):
        raise Refused(401, "This server needs its token: `Authorization: Bearer TOKEN`.")
    rest = urlencode([(key, value) for key, value in query if key != "token"])
    # Two slashes at the start would make the rest a host name.
    path = "/" + scope["path"].lstrip("/\\")
    answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
    answer.set_cookie(_cookie(token), token, httponly=True, samesite="strict")
    return answer


def _cookie(token: str) -> str:
    """All ports of a host share its cookies: two servers must not overwrite each other's."""
    return f"flatline_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _same(given: str, token: str) -> bool:
    """In a time that tells nothing about how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _replayed(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _plain(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status_code=status)
