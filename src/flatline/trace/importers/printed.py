"""What trainers print: the console output of a run, saved as text, with a row here and there.

    {'loss': 0.0012, 'grad_norm': 0.31, 'reward': 0.62, ...}    TRL and transformers
    step:12 - actor/entropy:0.31 - critic/score/mean:0.62 ...   verl
    [trainer] Step 12 | Loss: 0.0012 | Entropy: 0.31 ...        prime-rl
    [  10/1000] loss=-0.0002 reward=0.52 lr=1.00e-06 ...        a loop of one's own
    ts=2025-11-06T09:00:01Z step=12 reward=0.62 kl=0.01 ...     logfmt
    INFO - step  score  kl     len                              a table, its header now and then
    INFO -   12  0.511  0.029  415

A row in braces may go on over several lines, as a console of a fixed width breaks it. Everything
else in the file (progress bars, warnings, samples) is passed over. Nothing of it is run: a row is
read as names and numbers. Where several processes print rows of a step, what more than one of them
prints is told apart by their names; where they give none, by what stands beside it.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice, permutations
from pathlib import Path

from flatline.trace.importers.aliases import STEP
from flatline.trace.importers.last_words import error_after
from flatline.trace.importers.loaded import loaded_between
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.resolve import is_known, plain
from flatline.trace.importers.text import lines

FEWEST = 3
"""Names that make a line a row; a message may hold one pair by chance."""
PLACE = {*STEP, "epoch"}
"""What every row of a trainer says; what a model wrote, and somebody printed, hardly does."""
LOOKED_AT = 5_000
"""Lines before the first row: installing and loading print much."""
OFTEN = 0.1
"""Share of the rows that makes a kind of row."""
BROKEN = 64
"""Lines over which a row in braces may go on."""
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
_EPOCH_WORD = re.compile(r"(?<![\w/])ep(?:och)?[ #=:]*(?P<epoch>\d+)(?=[\s/|:,;)\]])", re.I)
_OF_BRACES = re.compile(r"(?<![\w/])(?:perf|eval) (?P<step>\d+): *$", re.I)
"""What slime calls rows that are no training."""
_BEGINS = re.compile(r"\bStarting \w* ?step (?P<step>\d+)", re.I)
_EVALUATED = re.compile(r"\bEvaluated (?P<set>[\w./-]+) in ")
_SORTED_OUT = re.compile(r"\bDetected \d+/(?P<all>\d+) rollouts \((?P<kinds>[^)]*)\)")
"""What prime-rl says between the first line of a step and its row."""
_EVALUATION = re.compile(
    r"\b(?:eval(?:uation|uated)?|val|validation|test|dev)\b\W{0,3}(?:at )?"
    r"(?:global[ _]?)?(?:step|iteration|iter|it|update)[ #=:]*(?P<step>\d+)\b"
    r"[ :,|-]*(?P<set>[a-z][\w./-]*(?= [a-z@\d]+[ =:]))?",
    re.I,
)
_SCORED = re.compile(
    rf"(?<![\w./@-])(?P<name>[a-z][\w./@-]*) ?[=: ] ?{_NUMBER}(?P<unit>%?)(?![\w.])", re.I
)
_SCORE = re.compile(r"acc|reward|score|pass|solve|success|win|correct|exact|^(em|f1)$", re.I)
"""What an evaluation says in a line of its own: `eval step 20: gsm acc 0.415 (n=600)`."""
_CELL = re.compile(rf"-|{_BARE}", re.I)
_NAME = re.compile(r"[a-z_][\w ./@%-]*", re.I)
_BAR_OF = re.compile(r"\| *(?P<done>\d+)/(?P<planned>\d+) \[")
_STEP_OF = re.compile(r"\[ *(?P<step>\d+) */ *(?P<planned>\d+) *\]")
_SPEAKER = re.compile(r"\[(?P<name>[a-z][\w-]*)\]", re.I)


def prints_rows(path: Path) -> bool:
    """Whether a text file is what a trainer printed."""
    return any(row for _, _, row in _rows(islice(lines(path), LOOKED_AT)))


def read_printed(path: Path) -> Log:
    """The rows among the lines."""
    found = list(_rows(lines(path)))
    said_by: dict[str, set[str]] = {}
    for _, line, row in found:
        for name in row:
            said_by.setdefault(name, set()).add(_speaker(line))
    rows = [row for _, _, row in found]
    log = Log(source="printed", path=path, config=_planned(path, rows))
    log.error = error_after(path, found[-1][0])
    steps = ["".join(row[name] for name in row if plain(name) in STEP) for row in rows]
    log.notes += loaded_between(path, [number for number, _, _ in found], steps)
    apart = _told_apart(rows)
    for number, line, row in found:
        speaker = _speaker(line)
        beside = {} if speaker else apart.get(frozenset(row), {})
        told = {
            beside.get(name) or _by(speaker, name, said_by[name]): value
            for name, value in row.items()
        }
        log.entries.append(Entry(f"line {number}", told))
    return log


def _rows(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Where each row is, its line, and its names and numbers."""
    table = _Table()
    step, last = "", ""
    waiting: list[tuple[int, str]] = []
    early: list[tuple[int, str, dict[str, str]]] = []
    for number, line in _mended(numbered):
        if begun := _BEGINS.search(line):
            step = begun["step"]
        # Before the first row nothing says that this is the log of a training.
        scores = _evaluation(line)
        if scores and not last:
            early.append((number, line, scores))
            continue
        if row := scores or _row(line) or table.row(line):
            yield from early
            early = []
            last = next((row[name] for name in row if plain(name) in STEP), last)
            yield from ((at, said, _of_step(said, last)) for at, said in waiting)
            waiting = []
        elif step in ("", last) and _EVALUATED.search(line):
            waiting.append((number, line))  # of the step that is told next
            continue
        if row := row or _of_step(line, step):
            yield number, line, row
    yield from ((at, said, _of_step(said, last)) for at, said in waiting if last)


def _mended(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines; those of a row in braces that a console of a fixed width broke are put together.
    What goes on so and never ends is no row, and its lines stand for themselves."""
    held: list[tuple[int, str]] = []
    for number, line in numbered:
        width = len(held[0][1]) if held else 0
        goes_on = bool(held) and "{'" not in line and len(line) <= width
        if not goes_on:
            yield from held
            held = []
        if not goes_on and ("{'" not in line or "}" in line):
            yield number, line
            continue
        held.append((number, line))
        if goes_on and "}" in line:
            yield held[0][0], "".join(part for _, part in held)
            held = []
        elif goes_on and (len(line) < width or len(held) > BROKEN):
            yield from held
            held = []
    yield from held


class _Table:
    """A table that is printed row by row under a header, with whatever a logger puts before it, or
    that a notebook shows between other lines. A file that begins with its header is a table."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._lines = 0

    def row(self, line: str) -> dict[str, str]:
        """The cells under the last header; empty for every other line."""
        self._lines += 1
        if len(line) > LONGEST or (self._lines == 1 and "\t" in line):
            return {}
        words = line.split("\t") if "\t" in line else [w for w in line.split() if w != "|"]
        words = [word.strip() for word in words]
        if header := _header(words):
            self._names = header
            return {}
        cells = words[-len(self._names) :] if self._names else []
        if len(cells) < len(self._names) or not all(_CELL.fullmatch(cell) for cell in cells):
            return {}
        row = {n: c for n, c in zip(self._names, cells, strict=True) if c != "-"}
        return row if len(row) >= FEWEST and _has_place(row) else {}


def _header(words: list[str]) -> list[str]:
    """The names at the end of a line, from that of the step on."""
    at = next((at for at, word in enumerate(words) if plain(word) in STEP), len(words))
    names = words[at:]
    known = sum(is_known(name) for name in names)
    single = len(set(names)) == len(names) > FEWEST
    return names if single and known >= FEWEST and all(map(_NAME.fullmatch, names)) else []


def _of_step(line: str, step: str) -> dict[str, str]:
    """What is said of the step that was begun, in a line of its own."""
    if not step:
        return {}
    if named := _EVALUATED.search(line):
        found = {one["name"]: _worth(one) for one in _EQUAL.finditer(line, named.end())}
        return {"step": step, **{f"eval/{named['set']}/{n}": v for n, v in found.items()}}
    if out := _SORTED_OUT.search(line):
        kinds = {one["name"]: float(one["value"]) for one in _EQUAL.finditer(out["kinds"])}
        shares = {name: repr(value / float(out["all"])) for name, value in kinds.items()}
        return {"step": step, **shares}
    return {}


def _evaluation(line: str) -> dict[str, str]:
    """The scores of an evaluation that names its step, among them one that is called a score."""
    said = _EVALUATION.search(line) if len(line) <= LONGEST else None
    found = list(_SCORED.finditer(line, said.end())) if said else []
    if said is None or not any(_SCORE.search(one["name"]) for one in found):
        return {}
    before = f"eval/{said['set']}/" if said["set"] else "eval/"
    return {"step": said["step"], **{f"{before}{one['name']}": _worth(one) for one in found}}


def _told_apart(rows: list[dict[str, str]]) -> dict[frozenset[str], dict[str, str]]:
    """What rows of two kinds print under one name at the same steps: by kind of row, the name and
    what it is called."""
    kinds: dict[frozenset[str], list[dict[str, str]]] = {}
    for row in rows:
        kinds.setdefault(frozenset(row), []).append(row)
    usual = {kind: _steps(of) for kind, of in kinds.items() if len(of) > OFTEN * len(rows)}
    found: dict[frozenset[str], dict[str, str]] = {}
    for (one, at), (other, also) in permutations(usual.items(), 2):
        alone = [name for name in kinds[one][0] if name not in other]
        if not alone or other <= one or 2 * len(at & also) <= len(at):
            continue
        shared = [name for name in one & other if plain(name) not in PLACE]
        found.setdefault(one, {}).update({n: f"{n} (beside {alone[0]})" for n in shared})
    return found


def _steps(rows: list[dict[str, str]]) -> set[str]:
    return {value for row in rows for name, value in row.items() if plain(name) in STEP}


def _planned(path: Path, rows: list[dict[str, str]]) -> dict[str, int]:
    """The steps that were planned, where every row says so, `[10/1000]`; where no row names its
    step, as the bar between them has it."""
    found = [_STEP_OF.search(line) for _, line in lines(path) if _named(line)]
    planned = {one["planned"] if one else "" for one in found}
    if not _steps(rows):
        bars: dict[str, set[str]] = {}
        for one in (bar for _, line in lines(path) for bar in _BAR_OF.finditer(line)):
            bars.setdefault(one["planned"], set()).add(one["done"])
        planned = {max(bars, key=lambda total: len(bars[total]))} if bars else planned
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
    step = _STEP_WORD.search(line, 0, at) or _OF_BRACES.search(line, 0, at)
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
    epoch = _EPOCH_WORD.search(line)
    return {"step": step["step"], **({"epoch": epoch["epoch"]} if epoch else {}), **found}


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
