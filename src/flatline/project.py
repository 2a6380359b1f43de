"""What a project says once for all its runs: `flatline.toml`, or `[tool.flatline]` in pyproject.

    correct = "exact_match"    # the part of the reward that says whether an answer is right
    gold = "answer"            # the column of the data with the right answer

    [thresholds]               # how many times beyond its own threshold a suspect must be
    H03 = 3

    [off]                      # what is not asked, and why; every report shows the reason
    H44 = "the problems are sorted on purpose: a curriculum"

The nearest file counts, from the working directory upwards to the root of the repository.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from flatline.errors import ConfigError
from flatline.files import toml_from

OWN, SHARED = "flatline.toml", "pyproject.toml"
_TABLE = re.compile(r"\s*\[\s*([\w.\"'-]+)\s*\]")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")


class Said(NamedTuple):
    """One value, and where it stands."""

    value: Any
    place: str
    """`flatline.toml:7`."""


@dataclass(frozen=True, slots=True)
class Project:
    """What is said; nothing where there is no file."""

    correct: Said | None = None
    """The part of the reward that says whether an answer is right."""
    gold: Said | None = None
    """The column of the data with the right answer."""
    thresholds: Mapping[str, Said] = field(default_factory=dict)
    """Code or name of a hypothesis -> how many times beyond its threshold a suspect must be."""
    off: Mapping[str, Said] = field(default_factory=dict)
    """Code or name of a hypothesis -> why it is not asked."""


def project() -> Project:
    """What the nearest file says."""
    try:
        here = Path.cwd()
    except OSError:  # the working directory is gone
        return Project()
    for folder in (here, *here.parents):
        for name in (OWN, SHARED):
            source = _opened(folder / name)
            if source is not None:
                return _read(source)
        if (folder / ".git").exists():
            break
    return Project()


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that speaks of flatline."""

    path: Path
    text: str

    @property
    def prefix(self) -> str:
        """The table that everything is in."""
        return "tool.flatline" if self.path.name == SHARED else ""

    def place(self, table: str, key: str) -> str:
        """File and line of a key, or of its table."""
        wanted = ".".join(part for part in (self.prefix, table) if part)
        inside, found = "", 0
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := _TABLE.match(line):
                inside = header[1]
                found = number if inside in (wanted, f"{wanted}.{key}".strip(".")) else found
            elif inside == wanted and (name := _KEY.match(line)) and name[1] == key:
                found = number
        return f"{self.path.name}:{found}" if found else self.path.name


def _opened(path: Path) -> _Source | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # not there, not ours to read, or no TOML
    # Somebody else's pyproject need not even be valid.
    return _Source(path, text) if path.name == OWN or "[tool.flatline" in text else None


def _read(source: _Source) -> Project:
    values = _values(source)
    for key in values:
        if key not in _READERS:
            known = ", ".join(f"`{name}`" for name in _READERS)
            near = difflib.get_close_matches(key, _READERS, n=1)
            meant = f"Did you mean `{near[0]}`? " if near else ""
            raise ConfigError(
                f"{source.place('', key)}: nothing is called `{key}`.\n{meant}There are: {known}."
            )
    return Project(**{key: _READERS[key](source, key, value) for key, value in values.items()})


def _values(source: _Source) -> dict[str, Any]:
    try:
        values = toml_from(source.text.encode())
    except ValueError as error:
        raise ConfigError(
            f"{source.path.name} is not valid TOML: {error}.\n"
            'Write one `name = value` a line, e.g. `correct = "exact_match"`.'
        ) from error
    for part in source.prefix.split(".") if source.prefix else ():
        values = values.get(part, {})
    return values


def _name(source: _Source, key: str, value: Any) -> Said:
    place = source.place("", key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f'{place}: `{key}` is a name in quotes.\nWrite `{key} = "NAME"`.')
    return Said(value, place)


def _reason(place: str, key: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f"{place}: {key} is switched off without a reason.\n"
            "Anyone who reads a report must know why a cause was not tested.\n"
            f'Write `{key} = "why it cannot be the cause here"`.'
        )


def _times(place: str, key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 1 <= value < math.inf:
        raise ConfigError(
            f"{place}: {key} = {value!r} is no threshold.\n"
            "It is how many times beyond flatline's own threshold a suspect must be: 1 or more.\n"
            f"Write `{key} = 2.0`; to switch it off, give the reason under `[off]`."
        )


def _table(
    check: Callable[[str, str, Any], None],
) -> Callable[[_Source, str, Any], dict[str, Said]]:
    def read(source: _Source, table: str, values: Any) -> dict[str, Said]:
        if not isinstance(values, dict):
            raise ConfigError(
                f"{source.place('', table)}: `{table}` is a table.\n"
                f"Write `[{'.'.join(filter(None, (source.prefix, table)))}]` on a separate line, "
                "and one hypothesis a line below it."
            )
        said = {key: Said(value, source.place(table, key)) for key, value in values.items()}
        for key, (value, place) in said.items():
            check(place, key, value)
        return said

    return read


_READERS: dict[str, Callable[[_Source, str, Any], Any]] = {
    "correct": _name,
    "gold": _name,
    "thresholds": _table(_times),
    "off": _table(_reason),
}
