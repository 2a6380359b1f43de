"""One hypothesis file: what its front matter says, checked."""

import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from flatline.errors import ConfigError
from flatline.journal import frontmatter

CODE = re.compile(r"[A-Z]\d{2,4}")
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
"""What an experiment may be called: its name is also a file's."""


class Status(StrEnum):
    """Where a hypothesis stands, in the seeds' words."""

    PENDING = "pending"
    TESTING = "testing"
    VALIDATED = "validated"
    PARTIAL = "partial"
    INVALIDATED = "invalidated"
    INCONCLUSIVE = "inconclusive"


CONTROL = "H00"
"""The positive control: validated means that the stack failed it."""
_SYMBOLS = {
    Status.PENDING: "⏳",
    Status.TESTING: "🧪",
    Status.VALIDATED: "✅",
    Status.PARTIAL: "✅",
    Status.INVALIDATED: "❌",
    Status.INCONCLUSIVE: "🤔",
}
_OF_THE_CONTROL = {
    Status.VALIDATED: (_SYMBOLS[Status.INVALIDATED], "A rung failed"),
    Status.INVALIDATED: (_SYMBOLS[Status.VALIDATED], "Every rung climbed"),
}
"""Of a control "validated" reads as praise, and it is the opposite: so it says what was found."""
JUDGED = (Status.VALIDATED, Status.PARTIAL, Status.INVALIDATED, Status.INCONCLUSIVE)
"""What only a result can say."""
OPEN = (Status.PENDING, Status.TESTING, Status.INCONCLUSIVE)
"""What there is still something to find out about."""
LEVELS = ("high", "medium", "low")
"""Of priority and of confidence; also their order."""


def standing(code: str, status: Status) -> str:
    """Where a hypothesis stands, in words that a person cannot misread."""
    return _shown(code, status)[1]


def label_of(code: str, status: Status) -> str:
    """The same behind its symbol, as the table shows it."""
    return " ".join(_shown(code, status))


def _shown(code: str, status: Status) -> tuple[str, str]:
    own = _OF_THE_CONTROL.get(status) if code == CONTROL else None
    return own or (_SYMBOLS[status], status.value.capitalize())


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The front matter of one hypothesis file."""

    file: Path
    """The Markdown file."""
    code: str
    """`H03`, or `U01` for one of the user's own."""
    title: str
    """In a few words."""
    priority: str
    """high, medium or low."""
    status: Status
    """Where it stands."""
    confidence: str | None
    """high, medium or low, once there is a verdict."""
    order: int
    """Place in the test order among those of one priority."""
    related: tuple[str, ...]
    """Codes of hypotheses whose verdicts bear on this one."""
    explains: tuple[str, ...]
    """Codes of hypotheses whose signs this one would produce."""
    experiments: tuple[str, ...]
    """Names of its experiments, oldest first."""
    cost_minutes: float | None
    """What a test costs at most; None where nobody knows."""
    note: str
    """A few words for the table."""

    @property
    def label(self) -> str:
        """Where it stands, as the table shows it."""
        return label_of(self.code, self.status)


class Field(NamedTuple):
    """What one key of the front matter may hold."""

    accepts: Callable[[Any], bool]
    wanted: str
    default: Any = None


def _is_codes(value: Any) -> bool:
    return isinstance(value, list) and all(_matches(CODE, one) for one in value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(_matches(NAME, one) for one in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _is_level(value: Any) -> bool:
    return isinstance(value, str) and value.lower() in LEVELS


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))


_REQUIRED = object()
_CODES = "a list of codes such as `[H01, H09]`"
FIELDS: dict[str, Field] = {
    "code": Field(lambda v: _matches(CODE, v), "a code such as `H03` or `U01`", _REQUIRED),
    "title": Field(lambda v: isinstance(v, str) and bool(v.strip()), "a few words", _REQUIRED),
    "priority": Field(_is_level, "`high`, `medium` or `low`", _REQUIRED),
    "status": Field(
        lambda v: isinstance(v, str) and v.lower() in list(Status),
        ", ".join(f"`{one}`" for one in Status),
        _REQUIRED,
    ),
    "confidence": Field(_is_level, "`high`, `medium`, `low` or `null`"),
    "order": Field(
        lambda v: isinstance(v, int) and not isinstance(v, bool), "a whole number", 1000
    ),
    "related": Field(_is_codes, _CODES, []),
    "explains": Field(_is_codes, _CODES, []),
    "experiments": Field(_is_names, "a list of names, without blanks or slashes", []),
    "cost_minutes": Field(_is_number, "a number of minutes, or `null`"),
    "note": Field(lambda v: isinstance(v, str), "text, in double quotes", ""),
}


def read_entry(text: str, file: Path) -> Entry:
    """The entry of a file's text; an error names file and line."""
    values = frontmatter.read(text, file)
    kept = {key: _checked(key, values, text, file) for key in FIELDS}
    return Entry(
        file=file,
        code=kept["code"],
        title=kept["title"],
        priority=kept["priority"].lower(),
        status=Status(kept["status"].lower()),
        confidence=kept["confidence"] and kept["confidence"].lower(),
        order=kept["order"],
        related=tuple(kept["related"]),
        explains=tuple(kept["explains"]),
        experiments=tuple(kept["experiments"]),
        cost_minutes=kept["cost_minutes"],
        note=kept["note"],
    )


def _checked(key: str, values: dict[str, Any], text: str, file: Path) -> Any:
    allowed, value = FIELDS[key], values.get(key)
    if value is None and allowed.default is not _REQUIRED:
        return allowed.default
    if value is not None and allowed.accepts(value):
        return value
    # reprlib, since a nested value of a hostile file may have no end.
    seen = f"`{key}` is {reprlib.repr(value)}" if key in values else f"`{key}` is missing"
    raise ConfigError(
        f"{file}:{frontmatter.line_of(text, key)}: {seen}.\n"
        "The table, the roadmap and the checks are made from it.\n"
        f"Write {allowed.wanted}."
    )
