"""What a recording could not record, for whoever reads the trace and not only for the terminal.

`recording.rR.S.json` is there while process R records: a run that ended has it no more, and what it
told is in `run.json`. Its full size is taken at once and it is written over in place, so that a
disk which is full takes the reason as well. Where it may not be written over, a `.next` beside it
takes its place.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from flatline.files import json_in, sealed, unsealed, write_exactly
from flatline.trace.ending import Ending

SIZE = 32 * 2**10
MOST_PARTS, LONGEST = 6, 150
"""Parts that are named, and characters of each: however they are escaped, all fit into the size."""
NEXT = ".next"
_NAME = re.compile(r"recording\.r(\d+)\.(\d+)\.json(?:\.next)?")


class Stop(NamedTuple):
    """Where a recording broke off, and why."""

    step: int
    why: str

    @property
    def until(self) -> str:
        """How far it goes."""
        return f"up to step {self.step}" if self.step else "before the end of step 1"


class Account:
    """Kept by the process that records."""

    def __init__(self, folder: Path, rank: int, segment: int) -> None:
        self._path = folder / f"recording.r{rank}.{segment}.json"
        self._handle: int | None = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._stop: Stop | None = None
        self._death: Ending | None = None
        self._whole: dict[str, str] | None = None
        self._left_out: list[str] = []
        self._dropped, self._told_dropped = 0, 0
        self.write()

    @property
    def facts(self) -> dict[str, Any]:
        """What there is to tell; empty where all was recorded."""
        found = {
            "stopped": self._stop and self._stop._asdict(),
            "died": self._death and self._death._asdict(),
            "whole": self._whole,
            "left_out": self._left_out,
            "dropped_tokens": self._dropped,
        }
        return {name: value for name, value in found.items() if value}

    def stopped(self, step: int, why: str) -> None:
        """The recording breaks off; the first reason counts."""
        if self._stop is None:
            self._stop = Stop(step, why[: 2 * LONGEST])
            self.write()

    @property
    def stop(self) -> Stop | None:
        """Where the recording broke off; None where it did not."""
        return self._stop

    def died(self, ending: Ending) -> None:
        """The training ended with an exception; the first counts."""
        if self._death is None:
            self._death = ending
            self.write()

    def whole(self, ended: str, why: str) -> None:
        """The run ended by itself and all was recorded; for this reason its files stay as they are,
        and `run.json` does not say so."""
        self._whole = {"ended": ended, "why": why[: 2 * LONGEST]}
        self.write()

    def left_out(self, part: str) -> None:
        """A part of the rows could not be recorded."""
        if len(self._left_out) < MOST_PARTS:
            self._left_out.append(part[:LONGEST])
            self.write()

    def dropped(self, rollouts: int) -> None:
        """Token detail of so many rollouts was dropped. The training waits, so nothing is written
        here."""
        self._dropped += rollouts

    def catch_up(self) -> None:
        """Write what was counted since."""
        if self._dropped > self._told_dropped:
            self.write()

    def write(self) -> None:
        if self._handle is not None:
            self._told_dropped = self._dropped
            text = (json.dumps(sealed(self.facts)) + "\n").rjust(SIZE)
            try:
                os.pwrite(self._handle, text.encode(), 0)
            except PermissionError:  # made immutable: the folder itself may not be
                write_exactly(self._path.with_name(self._path.name + NEXT), [text])

    def close(self, *, clean: bool) -> None:
        """No more to tell; after a clean end it is told elsewhere."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if clean:
            self._path.with_name(self._path.name + NEXT).unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)


class Told(NamedTuple):
    """An account that a recording has left, or still keeps."""

    rank: int
    segment: int
    facts: dict[str, Any]
    """Empty where all was recorded until then."""
    sound: bool
    """Whether it can be believed."""


def accounts_in(folder: Path) -> list[Told]:
    """Every account in a folder."""
    names = {entry.name for entry in folder.iterdir() if _NAME.fullmatch(entry.name)}
    latest = sorted(name for name in names if f"{name}{NEXT}" not in names)
    found = ((_NAME.fullmatch(name), *_read(folder / name)) for name in latest)
    told = [
        Told(int(name[1]), int(name[2]), facts, sound)
        for name, facts, sound in found
        if name and facts is not None
    ]
    return sorted(told, key=lambda one: (one.rank, one.segment))


def _read(path: Path) -> tuple[dict[str, Any] | None, bool]:
    """None where the run ended just now."""
    with suppress(ValueError, OSError):
        try:
            found = json_in(path)
        except FileNotFoundError:
            return None, True
        if isinstance(found, dict) and "checksum" in found:
            return unsealed(found)
    return {}, False
