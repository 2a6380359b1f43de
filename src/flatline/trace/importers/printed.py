"""What trainers print: the console output of a run, saved as text, with a row here and there.

    {'loss': 0.0012, 'grad_norm': 0.31, 'reward': 0.62, ...}    TRL and transformers
    step:12 - actor/entropy:0.31 - critic/score/mean:0.62 ...   verl

Everything else in the file (progress bars, warnings, samples) is passed over. Nothing of it is run:
a row is read as names and numbers.
"""

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.text import lines

FEWEST = 3
"""Names that make a line a row; a message may hold one pair by chance."""
PLACE = {"step", "epoch"}
"""What every row of a trainer says; what a model wrote, and somebody printed, hardly does."""
LOOKED_AT = 5_000
"""Lines before the first row: installing and loading print much."""
LONGEST = 2**16
"""Characters of a line that is read as a row. A row has some hundred names; samples are longer."""
_NUMBER = r"(?:np\.float\d+\(|tensor\()?(?P<value>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))\)?"
_IN_BRACES = re.compile(rf"""['"](?P<name>[^'"]+)['"]: ?['"]?{_NUMBER}['"]?(?=[,}}])""", re.I)
_BETWEEN_DASHES = re.compile(rf"(?<!\S)(?P<name>[^\s:]+): ?{_NUMBER}(?= - |\s*$)", re.I)


def prints_rows(path: Path) -> bool:
    """Whether a text file is what a trainer printed."""
    return any(_row(line) for _, line in islice(lines(path), LOOKED_AT))


def read_printed(path: Path) -> Log:
    """The rows among the lines."""
    log = Log(source="printed", path=path)
    for number, line in lines(path):
        if found := _row(line):
            log.entries.append(Entry(f"line {number}", found))
    return log


def _row(line: str) -> dict[str, str]:
    """Name -> number as it was printed; empty for a line that is no row."""
    for begins, pairs in _SHAPES:
        at = begins(line)
        if at >= 0 and len(line) - at <= LONGEST:
            found = {one["name"]: one["value"] for one in pairs.finditer(line, at)}
            if len(found) >= FEWEST and not PLACE.isdisjoint(found):
                return found
    return {}


def _braces(line: str) -> int:
    """Where a row of TRL begins: a progress bar may stand before it on the same line."""
    return line.find("{'")


def _dashes(line: str) -> int:
    """Where a row of verl begins: Ray puts the name of a worker before it."""
    return line.find("step:") if " - " in line else -1


_SHAPES: tuple[tuple[Callable[[str], int], re.Pattern[str]], ...] = (
    (_braces, _IN_BRACES),
    (_dashes, _BETWEEN_DASHES),
)
