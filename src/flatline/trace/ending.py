"""How a training ended that did not end by itself: the exception that left it.

Kept as words alone: a traceback would keep the tensors of a failed pass in memory.
"""

import errno
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from flatline.text import encodable, shortened

LONGEST = 300
"""Characters of a message that are kept."""
_OWN = Path(__file__).parents[1]
_LIBRARIES = tuple(
    Path(place) for name in ("purelib", "platlib", "stdlib") if (place := sysconfig.get_path(name))
)
_BY_HAND = ("KeyboardInterrupt", "SystemExit")
"""Somebody, or the script itself, ended it: no failure."""


class Ending(NamedTuple):
    """The exception that a training ended with."""

    step: int
    """The last step that is recorded."""
    kind: str
    said: str
    where: str
    """File and line of the innermost frame that is neither a library's nor flatline's."""

    @classmethod
    def of(cls, error: BaseException, step: int = 0) -> "Ending":
        said = "a message that cannot be shown"
        with suppress(Exception):  # a class of anybody's describes itself
            said = " ".join(str(error).split())
        return cls(step, type(error).__name__, _kept(said), _kept(_place(error)))

    @classmethod
    def read(cls, found: Any) -> "Ending | None":
        """What was written; None where that is something else."""
        with suppress(TypeError, ValueError):
            one = cls(**found)
            if isinstance(one.step, int) and all(isinstance(text, str) for text in one[1:]):
                return one
        return None

    @property
    def failed(self) -> bool:
        """Whether it was an error, and not somebody's wish."""
        return self.kind not in _BY_HAND

    def __str__(self) -> str:
        when = f"after step {self.step}" if self.step else "before its first step ended"
        if not self.failed:
            return f"This training was interrupted {when} ({self.kind})."
        where = f", at {self.where}" if self.where else ""
        error = f"{self.kind}: {self.said}" if self.said else self.kind
        return f"This training died {when} with an error: `{error.replace('`', chr(39))}`{where}."


def words_of(error: BaseException) -> str:
    """An error for a sentence; of the system, what it means and its name."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        name = errno.errorcode.get(error.errno, error.errno)
        file = f" {error.filename}" if error.filename else ""
        return f"could not write{file}: {error.strerror} ({name})"
    return str(error) or type(error).__name__


def _kept(text: str) -> str:
    return shortened(str(encodable(text)), limit=LONGEST)


def _place(error: BaseException) -> str:
    places = list(_places(error))
    own = [place for place, is_own in places if is_own]
    return (own or [place for place, _ in places] or [""])[-1]


def _places(error: BaseException) -> Iterator[tuple[str, bool]]:
    """Of every frame its file and line, and whether it is somebody's own code."""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        is_own = not file.startswith("<frozen") and not Path(file).is_relative_to(_OWN)
        yield f"{file}:{line}", is_own and not any(map(Path(file).is_relative_to, _LIBRARIES))
