"""Whom the guard of `flatline ui` and `flatline serve` lets in; over sockets where it matters."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from typer.testing import CliRunner

from flatline.cli import app
from flatline.errors import ConfigError
from flatline.loopback import TOKEN_VARIABLE, Bind, bind_address, guarded
from tests import served
from tests.served import a_bind

HERE = Bind(host="127.0.0.1", port=8321, token=None)
TOKEN = "0123456789abcdef0123"
LARGEST = 100


async def echo(request: Request) -> PlainTextResponse:
    body = await request.body()
    return PlainTextResponse(f"{request.method} {len(body)}")


def behind_the_guard(bind: Bind, *, body_seconds: float = 20.0):
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    return guarded(
        app, hosts=bind.hosts, token=bind.token, max_body=LARGEST, body_seconds=body_seconds
    )


def asking(bind: Bind = HERE, host: str = "127.0.0.1:8321") -> TestClient:
    return TestClient(behind_the_guard(bind), base_url=f"http://{host}")


@contextmanager
def listening(*, to_ask: float = 10.0, body_seconds: float = 20.0) -> Iterator[int]:
    """The port of a server with short patience."""
    bind = a_bind()
    app = behind_the_guard(bind, body_seconds=body_seconds)
    with served.listening(app, bind, to_ask=to_ask):
        yield bind.port


def told(port: int, *pieces: bytes, pause: float = 0.0, wait: float = 5.0) -> bytes:
    """All that the server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as line:
        answer = b""
        try:
            for piece in pieces:
                line.sendall(piece)
                time.sleep(pause)
            while more := line.recv(65536):
                answer += more
        except ConnectionError:
            pass
        return answer


HEAD = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost:8321", "LOCALHOST", "[::1]:8321"])
def test_the_names_of_this_machine_are_answered(host):
    assert asking(host="127.0.0.1").get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "",
        "[::2]",
        "localhost.",
        "[::1].evil.example",
        "[::1",
    ],
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(host):
    assert asking().get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1:8321"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[oops"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
    ],
)
def test_a_page_of_another_site_cannot_ask_and_a_link_works(headers, status):
    assert asking().get("/", headers=headers).status_code == status


def test_a_form_of_another_site_is_refused_although_it_navigates():
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert asking().post("/", headers=headers).status_code == 403


def test_a_body_is_passed_on_whole_and_a_larger_one_is_refused():
    client = asking()
    assert client.post("/", content=b"x" * LARGEST).text == f"POST {LARGEST}"
    refused = client.post("/", content=b"x" * (LARGEST + 1))
    assert refused.status_code == 413 and f"at most {LARGEST}" in refused.text


def test_a_body_without_a_length_is_counted_as_it_comes():
    pieces = (b"x" * 60 for _ in range(3))
    assert asking().post("/", content=pieces).status_code == 413


@pytest.mark.parametrize("way", ["header", "address"])
def test_a_token_lets_in_and_nothing_else_does(way):
    bind = Bind(host="0.0.0.0", port=8321, token=TOKEN)
    client = asking(bind, host="box.example:8321")
    wrong = {"authorization": f"Bearer {TOKEN}x"}
    assert client.get("/runs").status_code == 401
    assert client.get("/runs", headers=wrong).status_code == 401
    assert client.get(f"/runs?token={TOKEN[:-1]}").status_code == 401
    assert client.post(f"/runs?token={TOKEN}").status_code == 401
    if way == "header":
        assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        return
    first = client.get(f"/runs?q=1&token={TOKEN}", follow_redirects=False)
    assert first.status_code == 303 and first.headers["location"] == "/runs?q=1"
    kept = first.headers["set-cookie"].lower()
    assert "httponly" in kept and "samesite=strict" in kept
    assert client.get("/runs").status_code == 200


def test_the_way_back_from_a_token_never_leads_to_another_host():
    client = asking(Bind(host="0.0.0.0", port=8321, token=TOKEN), host="box.example:8321")
    address = f"http://box.example:8321//evil.example/x?token={TOKEN}"
    assert client.get(address, follow_redirects=False).headers["location"] == "/evil.example/x"


def test_a_web_socket_is_refused():
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), asking().websocket_connect("/"):
        pass


def test_any_host_name_without_a_token_is_a_mistake_of_the_programmer():
    with pytest.raises(ValueError, match="needs a token"):
        guarded(behind_the_guard(HERE), hosts=(), token=None, max_body=1)


def test_loopback_needs_no_token_and_any_other_address_makes_one(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    port = a_bind().port
    here = bind_address("localhost", port, command="flatline ui")
    away = bind_address("0.0.0.0", port, command="flatline ui")
    assert here.token is None and here.hosts and not here.warning
    assert here.link == f"http://127.0.0.1:{port}/"
    assert away.token and len(away.token) >= 32 and not away.hosts
    assert away.token in away.link and "nothing is encrypted" in away.warning
    assert away.token != bind_address("0.0.0.0", port, command="flatline ui").token


def test_a_token_of_the_environment_is_asked_for_on_loopback_too(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert bind_address("127.0.0.1", a_bind().port, command="flatline ui").token == TOKEN


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_a_token_of_the_environment_is_never_printed(monkeypatch, tmp_path, command):
    """Whoever set it knows it; the record of a terminal or of a cluster job should not."""
    import flatline.loopback as loopback

    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    monkeypatch.setattr(loopback, "listen", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    place = [str(tmp_path)] if command == "ui" else []
    done = CliRunner().invoke(app, [command, *place, "--port", port])
    assert done.exit_code == 0, done.output
    assert TOKEN not in done.output and TOKEN_VARIABLE in done.output


@pytest.mark.parametrize("token", ["short", "with spaces and more of them", "ä" * 20])
def test_a_token_that_can_be_guessed_or_does_not_fit_an_address_is_refused(monkeypatch, token):
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE} has to be"):
        bind_address("127.0.0.1", a_bind().port, command="flatline ui")


@pytest.mark.parametrize("host", ["example.com", "", "1.2.3", "127.0.0.1\x1b[31m"])
def test_a_host_that_is_no_address_is_refused_with_what_to_type(host):
    with pytest.raises(ConfigError, match=r"flatline ui --host 127\.0\.0\.1"):
        bind_address(host, 8321, command="flatline ui")


def test_a_head_that_never_ends_is_hung_up_on():
    with listening(to_ask=0.3) as port:
        began = time.monotonic()
        assert told(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", wait=5) == b""
        assert told(port, wait=5) == b""
        assert time.monotonic() - began < 4


def test_a_body_that_trickles_is_refused():
    with listening(body_seconds=0.3) as port:
        answer = told(port, HEAD + b"Content-Length: 50\r\n\r\n", b"x", pause=0.1)
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_large_body_is_refused_before_it_is_sent():
    with listening() as port:
        answer = told(port, HEAD + b"Content-Length: 99999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_a_request_that_is_none_gets_400_and_the_server_goes_on(sent):
    with listening(to_ask=1) as port:
        assert told(port, sent)[:12] in (b"HTTP/1.1 400", b"")
        whole = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        assert told(port, whole).startswith(b"HTTP/1.1 200")
