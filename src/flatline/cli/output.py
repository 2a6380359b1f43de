"""What the command writes to: stdout with `--json`, a reader that goes away, and one that obeys.

With `--json`, stdout holds JSON and nothing else, whatever the libraries print that a command uses.
Loggers that write to stdout, a stray `print`, a C library: all of it goes to stderr while the
command works. What is printed with `print_json` alone goes to stdout.

A runner of continuous integration obeys lines such as `::add-mask::x` on either stream, and what is
printed may quote a model, a log or a file name, wrapped at any place. So no such line leaves the
process but through `tell_runner`.
"""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from flatline.text import unobeyed, visible

STDOUT, STDERR = 1, 2

_kept: list[tuple[TextIO, int | None]] = []
"""Stdout as it was before it was given to nobody: the stream, and a copy of its descriptor."""


class _Unheard(io.FileIO):
    """What nobody reads any more (`| head -1`) is written nowhere."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


class _Unobeyed(io.TextIOWrapper):
    """Nothing that is written to it is a command for whoever reads it."""

    def write(self, text: str, /) -> int:
        super().write(unobeyed(text))
        return len(text)

    def command(self, line: str) -> None:
        super().write(f"{line}\n")


def outlive_readers() -> None:
    """A reader that has seen enough changes neither the command's work nor its exit code."""
    for name, descriptor in (("stdout", STDOUT), ("stderr", STDERR)):
        own = getattr(sys, name)
        # Neither a stream that somebody put there, nor the None of a process started without one.
        if isinstance(own, io.TextIOWrapper) and own is getattr(sys, f"__{name}__"):
            raw = _Unheard(descriptor, "w", closefd=False)
            mine = _Unobeyed(
                io.BufferedWriter(raw),
                encoding=own.encoding,
                # A name may be one that no encoding has, and a box one that the terminal's has not.
                errors="backslashreplace" if own.errors == "strict" else own.errors,
                line_buffering=own.line_buffering,
                write_through=own.write_through,
            )
            setattr(sys, name, mine)


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


def say(text: str) -> None:
    """Tell a person beside the results, as the work goes on."""
    print(visible(text), file=sys.stderr, flush=True)


def tell_runner(line: str, *, err: bool) -> None:
    """A line that is a command."""
    stream = sys.stderr if err else sys.stdout
    if isinstance(stream, _Unobeyed):
        stream.command(line)
    else:
        print(line, file=stream)


def _given_to_stderr(own: TextIO) -> int | None:
    """A copy of the descriptor; None for a stream that somebody put in the place of stdout, and
    for a process that was started without one of the two."""
    if None in (own, sys.stderr) or not _is_of_the_process(own):
        return None
    own.flush()
    copy = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return copy


def _is_of_the_process(own: TextIO) -> bool:
    try:
        return own.fileno() == STDOUT
    except (OSError, ValueError):
        return False


@contextmanager
def _taken_back(own: TextIO, descriptor: int | None) -> Iterator[None]:
    if descriptor is None:
        yield
        return
    own.flush()  # what somebody wrote to it and left there
    os.dup2(descriptor, STDOUT)
    yield
    os.dup2(STDERR, STDOUT)  # not where nobody listens: the rest of an answer is nothing for stderr
