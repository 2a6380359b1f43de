"""Text that is safe to show. Anyone may have written it, and a terminal or a page may obey it."""

import re
import unicodedata
from typing import Any

_KEPT = "\n\t"
# Marks that reorder or split lines without being seen. Joiners stay: emoji and scripts need them.
_UNSEEN = {0x200E, 0x200F, 0x061C, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


_COMMAND = re.compile(r"((?:^|\r)[^\S\n]*):(?=:)|#(?=#\w*\[)", re.MULTILINE)
"""What runners of continuous integration obey: GitHub `::` that begins a line, blanks or not, and
`##[` anywhere; Azure `##vso[`, TeamCity `##teamcity[`."""


def visible(text: str) -> str:
    """Control characters, text-direction marks and lone surrogates written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if _is_hidden(char) else char for char in text)


def encodable(value: Any) -> Any:
    """A value of JSON whose texts and names UTF-8 can write: JSON and what models write may have
    half of a surrogate pair, which becomes an escape."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(name): encodable(held) for name, held in value.items()}
    return [encodable(held) for held in value] if isinstance(value, list) else value


def unobeyed(text: str) -> str:
    """Output in which a runner finds no command: one character of each is written as an escape,
    which means the same inside a JSON string."""
    return _COMMAND.sub(lambda found: f"{found[1] or ''}\\u{ord(found[0][-1]):04x}", text)


def shortened(text: str, *, limit: int) -> str:
    """The beginning of a long text, and how much is missing."""
    return text if len(text) <= limit else f"{text[:limit]} … (+{len(text) - limit} characters)"


def _is_hidden(char: str) -> bool:
    if char in _KEPT:
        return False
    return unicodedata.category(char) in {"Cc", "Cs"} or ord(char) in _UNSEEN


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
