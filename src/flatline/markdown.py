"""Text of others, made safe for Markdown: it may not end a cell, open a tag or pose as a marker.

Titles, reasons and what a model wrote end up in files that flatline itself reads again.
"""

import re

from flatline.text import visible

LONGEST = 2_000
"""Characters of one quoted text; more belongs into a file of its own."""

_CODE = re.compile(r"(`[\w .,=+/:@%{}-]+`)")
"""A code span that can hold nothing but itself."""
_ENTITY = re.compile(r"&(?=#|\w+;)")
_SPECIAL = re.compile(r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|!(?=\[)|(?<=\])[(\[:]")


def one_line(text: object, *, limit: int = LONGEST) -> str:
    """The text on one line, with nothing in it that is not seen."""
    line = visible(" ".join(str(text)[: 4 * limit].split()))
    # YAML refuses these two, and no font has them.
    line = line.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def inline(text: object, *, limit: int = LONGEST) -> str:
    """The text on one line of Markdown, in a table cell too; it reads as it was written."""
    pieces = _CODE.split(one_line(text, limit=limit))
    # Every second piece is a code span, which must not be touched.
    return "".join(p if i % 2 else _escaped(p) for i, p in enumerate(pieces))


def _escaped(text: str) -> str:
    text = _SPECIAL.sub(lambda found: "\\" + found[0], _ENTITY.sub("&amp;", text))
    return text.replace("<", "&lt;").replace(">", "&gt;")


def target(path: str) -> str:
    """A relative path as the target of a link."""
    from urllib.parse import quote

    return quote(path, safe="/-_.~")
