"""What every importer hands over: the rows of a log, and what could not be read of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatline.errors import TraceError

SHOWN_BAD = 3
"""How many unusable rows a message names; the rest are counted."""
SHOWN_TEXT = 60
"""How many characters of a value a message quotes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a log."""

    place: str
    """Where it was, such as `line 7`."""
    values: dict[str, Any]
    """As the source wrote them, not validated."""


@dataclass(slots=True, kw_only=True)
class Log:
    """A log as it was read, before names and steps are sorted out."""

    source: str
    """Which importer, such as `trl`."""
    path: Path
    """The file, or the folder of files."""
    entries: list[Entry] = field(default_factory=list)
    """In the order of the source."""
    bad: list[str] = field(default_factory=list)
    """Rows and values that could not be used: place and reason."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know about the import."""
    config: dict[str, Any] = field(default_factory=dict)
    """The trainer's own configuration, where the source has one."""
    error: str = ""
    """The error that ended the run, as it was printed; empty where none is seen."""
    unrecognised: set[str] = field(default_factory=set)
    """Names in a dump of rollouts that its importer does not know."""

    def told_bad(self) -> list[str]:
        """The first unusable rows, and how many more there are."""
        more = len(self.bad) - SHOWN_BAD
        shown = [f"{self.path}, {reason}" for reason in self.bad[:SHOWN_BAD]]
        return shown + ([f"{self.path}: {more} more that could not be used"] if more > 0 else [])


def quoted(value: Any) -> str:
    """A value for a message: short, on one line, and with nothing a terminal would obey."""
    shown = repr(value)
    return shown if len(shown) <= SHOWN_TEXT else f"{shown[:SHOWN_TEXT]}…"


def nothing_in(log: Log, wanted: str) -> TraceError:
    """The error for a file that was read and holds nothing of use."""
    reasons = "".join(f"\n{reason}" for reason in log.told_bad())
    return TraceError(
        f"{log.path} holds no {wanted}.{reasons}\n"
        "Give a file with one row per step; docs/a-log.md lists what can be read."
    )
