"""`--json`: stdout holds JSON and nothing else, whatever the libraries print that a command uses.

Loggers that write to stdout, a stray `print`, a C library: all of it goes to stderr while the
command works. What is printed with `print_json` alone goes to stdout.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

STDOUT, STDERR = 1, 2

_kept: list[tuple[TextIO, int | None]] = []
"""Stdout as it was before it was given to nobody: the stream, and a copy of its descriptor."""


@contextmanager
def json_alone() -> Iterator[None]:
    """What anyone prints inside goes to stderr.

    The descriptor stays there until the process ends: a C library writes what it has buffered when
    that happens, and not before.
    """
    own = sys.stdout
    _kept.append((own, _given_to_stderr(own)))
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _kept.pop()


def print_json(shape: Any, *, indent: int | None = 2, default: Any = None) -> None:
    """The answer of a command, on stdout."""
    text = json.dumps(shape, indent=indent, default=default)
    own, descriptor = _kept[-1] if _kept else (sys.stdout, None)
    with _taken_back(own, descriptor):
        print(text, file=own, flush=True)


def _given_to_stderr(own: TextIO) -> int | None:
    """A copy of the descriptor; None for a stream that somebody put in the place of stdout, and
    for a process that was started without one of the two."""
    if own is not sys.__stdout__ or None in (own, sys.stderr):
        return None
    own.flush()
    copy = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return copy


@contextmanager
def _taken_back(own: TextIO, descriptor: int | None) -> Iterator[None]:
    if descriptor is None:
        yield
        return
    own.flush()  # what somebody wrote to it and left there
    os.dup2(descriptor, STDOUT)
    yield
    os.dup2(STDERR, STDOUT)  # not where nobody listens: the rest of an answer is nothing for stderr
