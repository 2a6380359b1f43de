"""No command reaches a network unless it was asked to: sockets are forbidden, and everything works.

The commands run in a process of their own whose `socket` refuses every address, loopback included,
and whose `getaddrinfo` refuses every name. `make quality` does the same with a model.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web_runs import investigate, record

GUARD = """
import socket, sys

def refused(*_, **__):
    raise AssertionError("the network was asked")

class Closed(socket.socket):
    connect = connect_ex = bind = sendto = refused

socket.socket = Closed
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refused
"""
RUN_ALL = (
    GUARD
    + """
import json
from typer.testing import CliRunner
from flatline.cli import app

found = {}
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    told = "" if done.exception is None or isinstance(done.exception, SystemExit) else repr(done)
    found[" ".join(words)] = [done.exit_code, told or done.output[-300:]]
print(json.dumps(found))
"""
)
COMMANDS = [
    ["--help"],
    ["explain", "H09"],
    ["tasks", "check", "musique", "--limit", "2"],
    ["tasks", "show", "toolmath"],
    ["show", "run"],
    ["query", "run", "SELECT count(*) FROM steps"],
    ["diagnose", "run"],
    ["report", "run", "-o", "run.html"],
    ["report", "journal", "-o", "journal.html"],
    ["journal", "status", "journal"],
    ["journal", "next", "journal"],
    ["journal", "check", "journal"],
    ["journal", "init", "new", "musique"],
]


def run_all(commands: list[list[str]], folder: Path, *, seconds: int = 250) -> dict[str, list]:
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("offline")
    record(made / "run", steps=3)
    investigate(made / "journal")
    return made


def test_the_guard_would_be_noticed():
    asks = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')"
    done = subprocess.run(
        [sys.executable, "-c", GUARD + asks], capture_output=True, text=True, check=False
    )
    assert "the network was asked" in done.stderr


def test_no_command_asks_the_network(folder):
    found = run_all(COMMANDS, folder)
    failed = {words: said for words, said in found.items() if said[0] not in (0, 1)}
    assert not failed and "the network was asked" not in json.dumps(found)
