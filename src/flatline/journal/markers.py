"""The parts of a Markdown file that are flatline's: between two comments, each alone on its line.

    <!-- flatline:status -->
    ...
    <!-- /flatline:status -->

Whatever stands outside is a person's and survives byte for byte, line ends included.
"""

import re
from pathlib import Path
from typing import NamedTuple

from flatline.errors import ConfigError

_MARKER = re.compile(r"^<!-- (/?)flatline:([\w.-]+) -->[ \t]*(?:\r?\n|\Z)", re.MULTILINE)


class Span(NamedTuple):
    """Where the text between two markers begins and ends."""

    start: int
    end: int


def between(text: str, name: str) -> str | None:
    """What comes between the markers of a name; None where there are none."""
    span = spans(text).get(name)
    return None if span is None else text[span.start : span.end]


def filled(text: str, name: str, body: str) -> str | None:
    """The text with another body between the markers of a name; None where there are none."""
    span = spans(text).get(name)
    if span is None:
        return None
    return text[: span.start] + _as_in(text, body.strip("\n") + "\n") + text[span.end :]


def appended(text: str, name: str, body: str, *, heading: str = "") -> str:
    """The text with a new pair of markers at its end."""
    start, end = marks(name)
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    title = f"{heading}\n\n" if heading else ""
    return text + _as_in(text, f"{gap}{title}{start}\n{body.strip(chr(10))}\n{end}\n")


def marks(name: str) -> tuple[str, str]:
    """The two comments."""
    return f"<!-- flatline:{name} -->", f"<!-- /flatline:{name} -->"


def spans(text: str, *, file: Path | None = None) -> dict[str, Span]:
    """Every pair of markers; one without its other half is an error."""
    found: dict[str, Span] = {}
    opened: re.Match[str] | None = None
    for marker in _MARKER.finditer(text):
        closes, name = bool(marker[1]), marker[2]
        if not closes and opened is None and name not in found:
            opened = marker
        elif closes and opened is not None and opened[2] == name:
            found[name] = Span(opened.end(), marker.start())
            opened = None
        else:
            raise _unpaired(text, marker, file)
    if opened is not None:
        raise _unpaired(text, opened, file)
    return found


def _unpaired(text: str, marker: re.Match[str], file: Path | None) -> ConfigError:
    line = text.count("\n", 0, marker.start()) + 1
    start, end = marks(marker[2])
    return ConfigError(
        f"{file or 'The text'}:{line} has `{marker[0].strip()}` without its other half, or twice.\n"
        "flatline writes between such markers only, and must know where its part ends.\n"
        f"Leave one line `{start}` and, below it, one line `{end}`."
    )


def _as_in(text: str, body: str) -> str:
    """The body with the line ends of the file."""
    return body.replace("\n", "\r\n") if "\r\n" in text else body
