"""What trainers print: the console output of a run, saved as text, with a row here and there.

    {'loss': 0.0012, 'grad_norm': 0.31, 'reward': 0.62, ...}    TRL and transformers
    step:12 - actor/entropy:0.31 - critic/score/mean:0.62 ...   verl
    [trainer] Step 12 | Loss: 0.0012 | Entropy: 0.31 ...        prime-rl
    [  10/1000] loss=-0.0002 reward=0.52 lr=1.00e-06 ...        a loop of one's own
    ts=2025-11-06T09:00:01Z step=12 reward=0.62 kl=0.01 ...     logfmt

Everything else in the file (progress bars, warnings, samples) is passed over. Nothing of it is run:
a row is read as names and numbers. Where several processes print rows of a step, what more than one
of them prints is told apart by their names.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from flatline.trace.importers.aliases import STEP
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.resolve import is_known, plain
from flatline.trace.importers.text import lines

FEWEST = 3
"""Names that make a line a row; a message may hold one pair by chance."""
PLACE = {*STEP, "epoch"}
"""What every row of a trainer says; what a model wrote, and somebody printed, hardly does."""
LOOKED_AT = 5_000
"""Lines before the first row: installing and loading print much."""
LONGEST = 2**16
"""Characters of a line that is read as a row. A row has some hundred names; samples are longer."""
_BARE = r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|(?:nan|inf)(?![a-z]))"
_NUMBER = rf"(?:np\.float\d+\(|tensor\()?(?P<value>{_BARE})\)?"
_IN_BRACES = re.compile(rf"""['"](?P<name>[^'"]+)['"]: ?['"]?{_NUMBER}['"]?(?=[,}}])""", re.I)
_BETWEEN_DASHES = re.compile(rf"(?<!\S)(?P<name>[^\s:]+): ?{_NUMBER}(?= - |\s*$)", re.I)
_EQUAL = re.compile(
    rf"(?<![\w.])(?P<name>[a-z_][\w./@-]{{0,80}}) ?= ?{_NUMBER}(?P<unit>%|[a-z/]*)(?=[\s,;|)\]]|$)",
    re.I,
)
_BETWEEN_BARS = re.compile(
    rf"\s*(?P<name>[a-z][\w ./@-]{{0,80}}?)(?: ?[:=] ?| {{1,8}}){_NUMBER}"
    r"(?P<unit> ?%| ?s\b)?(?![\d.]).*",
    re.I,
)
_STEP_WORD = re.compile(
    r"(?<![\w/])(?:global[ _]?step|step|iteration|iter|it|update|rollout)[ #:=]*(?P<step>\d+)"
    r"(?= */ *\d| *[|:,;\])}]|\s+\W|\s+[a-z_.]+ ?[:=]|\s*$)",
    re.I,
)
_STEP_OF = re.compile(r"\[ *(?P<step>\d+) */ *(?P<planned>\d+) *\]")
_SPEAKER = re.compile(r"\[(?P<name>[a-z][\w-]*)\]", re.I)


def prints_rows(path: Path) -> bool:
    """Whether a text file is what a trainer printed."""
    return any(_row(line) for _, line in islice(lines(path), LOOKED_AT))


def read_printed(path: Path) -> Log:
    """The rows among the lines."""
    found = [(number, _speaker(line), row) for number, line in lines(path) if (row := _row(line))]
    said_by: dict[str, set[str]] = {}
    for _, speaker, row in found:
        for name in row:
            said_by.setdefault(name, set()).add(speaker)
    log = Log(source="printed", path=path, config=_planned(path))
    for number, speaker, row in found:
        told = {_by(speaker, name, said_by[name]): value for name, value in row.items()}
        log.entries.append(Entry(f"line {number}", told))
    return log


def _planned(path: Path) -> dict[str, int]:
    """The steps that were planned, where every row says so: `[10/1000]`."""
    rows = [_STEP_OF.search(line) for _, line in lines(path) if _named(line)]
    planned = {one["planned"] if one else "" for one in rows}
    only = planned.pop() if len(planned) == 1 else ""
    return {"max_steps": int(only)} if only else {}


def _row(line: str) -> dict[str, str]:
    """Name -> number as it was printed; empty for a line that is no row."""
    if len(line) > LONGEST and "{'" not in line and "step:" not in line:
        return {}
    return _in_braces(line) or _between_dashes(line) or _named(line)


def _in_braces(line: str) -> dict[str, str]:
    """A row of TRL: a progress bar, or the name of a worker and a step, may stand before it."""
    at = line.find("{'")
    if at < 0 or len(line) - at > LONGEST:
        return {}
    found = _pairs(_IN_BRACES, line, at)
    step = _STEP_WORD.search(line, 0, at)
    if step and found:
        found.setdefault("step", step["step"])
    return found if len(found) >= FEWEST and _has_place(found) else {}


def _between_dashes(line: str) -> dict[str, str]:
    """A row of verl: Ray puts the name of a worker before it."""
    at = line.find("step:") if " - " in line else -1
    if at < 0 or len(line) - at > LONGEST:
        return {}
    found = _pairs(_BETWEEN_DASHES, line, at)
    return found if len(found) >= FEWEST and _has_place(found) else {}


def _named(line: str) -> dict[str, str]:
    """A row of names and numbers between bars, or with signs of equality between them."""
    if len(line) > LONGEST:
        return {}
    found = dict(_between_bars(line)) if " | " in line else {}
    found |= {one["name"]: _worth(one) for one in _EQUAL.finditer(line)}
    if any(plain(name) in STEP for name in found):
        return found if len(found) > FEWEST else {}
    step = _STEP_OF.search(line) or _STEP_WORD.search(line)
    # What a model writes has steps and equations, too, and none of a reward.
    if step is None or len(found) < FEWEST or not any(is_known(name) for name in found):
        return {}
    return {"step": step["step"], **found}


def _between_bars(line: str) -> Iterator[tuple[str, str]]:
    for part in line.split(" | "):
        one = _BETWEEN_BARS.fullmatch(part)
        if one and not _STEP_WORD.match(part.lstrip()):
            name = one["name"].replace(".", "").strip()
            # The name of the clock, in other logs.
            seconds = (one["unit"] or "").strip().lower() == "s" and name.lower() == "time"
            yield f"{name}_s" if seconds else name, _worth(one)


def _worth(one: re.Match[str]) -> str:
    """A number as it was printed; a percentage as a share."""
    percent = (one["unit"] or "").strip() == "%"
    return repr(float(one["value"]) / 100) if percent else one["value"]


def _pairs(pattern: re.Pattern[str], line: str, at: int) -> dict[str, str]:
    return {one["name"]: one["value"] for one in pattern.finditer(line, at)}


def _has_place(found: dict[str, str]) -> bool:
    return any(plain(name) in PLACE for name in found)


def _speaker(line: str) -> str:
    """The process that printed a row, where it says so."""
    found = _SPEAKER.search(line)
    return found["name"] if found else ""


def _by(speaker: str, name: str, speakers: set[str]) -> str:
    """What several processes print under one name, told apart."""
    apart = speaker and len(speakers) > 1 and plain(name) not in PLACE
    return f"{speaker}/{name}" if apart else name
