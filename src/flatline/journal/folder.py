"""The journal's folder: where things are, who may write, and every hypothesis in it.

Nothing is cached and there is no index: `status` and `next` read the front matter of the hypothesis
files and nothing else, so the number of experiments does not matter to them.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flatline.errors import ConfigError
from flatline.files import (
    RefusedFile,
    bytes_in,
    json_in,
    refuse_outside,
    toml_in,
    write_exactly,
)
from flatline.journal.entry import Entry, read_entry

README, PROBLEM, LOG, SETUP = (
    "README.md",
    "00-problem-statement.md",
    "01-experiments-log.md",
    "setup.toml",
)
HYPOTHESES, RESULTS, FIXES = "hypotheses", "experimental-results", "fixes"


class Broken(NamedTuple):
    """A hypothesis file that cannot be read."""

    file: Path
    error: str


class Reading(NamedTuple):
    """Every hypothesis file of a journal."""

    entries: list[Entry]
    broken: list[Broken]

    def duplicates(self) -> dict[str, list[Entry]]:
        """Codes that more than one file has."""
        by_code: dict[str, list[Entry]] = {}
        for entry in self.entries:
            by_code.setdefault(entry.code, []).append(entry)
        return {code: found for code, found in by_code.items() if len(found) > 1}

    def insist(self) -> None:
        """Raise what is wrong with any of the files."""
        if self.broken:
            raise ConfigError("\n".join(broken.error for broken in self.broken[:5]))


@dataclass(frozen=True, slots=True)
class Journal:
    """A folder in the seeds' layout."""

    path: Path
    """Of the folder."""

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """The journal in a folder that has one."""
        if not (path / HYPOTHESES).is_dir():
            raise ConfigError(
                f"{path} holds no journal: there is no folder {HYPOTHESES}/ in it.\n"
                "A journal keeps hypotheses, results and fixes together.\n"
                f"Type `flatline journal init {path}` to begin one."
            )
        try:
            for name in (HYPOTHESES, RESULTS, FIXES):
                refuse_outside(path / name, path)
        except RefusedFile as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from error
        return cls(path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Alone in this journal. Whoever holds it reads again what it is about to change."""
        from flatline.trace.lock import folder_lock

        with folder_lock(self.path):
            yield

    def read(self) -> Reading:
        """Every hypothesis, in the order of codes."""
        reading = Reading([], [])
        for file in sorted((self.path / HYPOTHESES).glob("*.md")):
            try:
                reading.entries.append(read_entry(read_text(file), file))
            except ConfigError as error:
                reading.broken.append(Broken(file, str(error)))
        reading.entries.sort(key=lambda entry: (entry.code[0], int(entry.code[1:]), entry.file))
        return reading

    def find(self, code: str) -> Entry | None:
        """The one hypothesis of a code; a broken file only matters if it may be the one."""
        reading = self.read()
        found = [entry for entry in reading.entries if entry.code == code]
        if len(found) > 1:
            files = " and ".join(entry.file.name for entry in found)
            raise ConfigError(
                f"{self.path} has {code} more than once: {files}.\n"
                "A result could not be given to either.\n"
                "Give one of them another `code`, such as `U01` if it is your own."
            )
        if not found:
            suspects = [b.error for b in reading.broken if b.file.name.startswith(code.lower())]
            if suspects:
                raise ConfigError(suspects[0])
        return found[0] if found else None

    def setup(self) -> dict[str, Any] | None:
        """What setup.toml sets, unchecked; None where there is none."""
        path = self.path / SETUP
        try:
            return toml_in(path) if path.exists() else None
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} is not valid TOML: {error}.\n"
                'Write one `name = value` a line, e.g. `task = "musique"`.'
            ) from error

    def results(self) -> Iterator[tuple[Path, dict[str, Any] | None]]:
        """Every experiment's JSON, oldest name first; None for one that cannot be read."""
        for file in sorted((self.path / RESULTS).glob("*.json")):
            yield file, load_json(file)


def load_json(file: Path) -> dict[str, Any] | None:
    """An object from a JSON file; None where it is missing, broken or something else."""
    try:
        value = json_in(file, within=_home(file))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def part(value: Mapping[str, Any], *keys: str) -> Any:
    """A value inside nested objects that someone may have edited; None where it is not there."""
    found: Any = value
    for key in keys:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def read_text(file: Path) -> str:
    """Text with its line ends as they are."""
    try:
        return bytes_in(file, within=_home(file)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8: byte {error.start} is {error.object[error.start]:#x}.\n"
            "Written back, it would be changed.\nSave it as UTF-8 in your editor."
        ) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{file} cannot be read: {why}.\nFix the file or its permissions."
        ) from error


def write_text(file: Path, text: str) -> bool:
    """Write atomically, unless the file already says so; whether it was written."""
    if file.exists() and read_text(file) == text:
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        refuse_outside(file, _home(file))
        write_exactly(file.resolve(), [text])
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}.\n"
            "It is as it was before. Make room there, or give yourself the right to write."
        ) from error
    return True


def _home(file: Path) -> Path:
    """The folder of the journal that a file belongs to."""
    below = file.parent.name in (HYPOTHESES, RESULTS, FIXES)
    return file.parent.parent if below else file.parent


def shown(path: Path) -> str:
    """The folder as a command names it; a machine's own path does not belong into a document."""
    name = path.name or "." if path.is_absolute() else str(path)
    return shlex.quote(name) if re.fullmatch(r"[\w./ -]+", name) else "DIR"
