"""Does the journal hold together? Links, codes, statuses, and the evidence behind each verdict."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from flatline.errors import ConfigError
from flatline.journal import frontmatter, markers, results
from flatline.journal.board import cells_of
from flatline.journal.entry import JUDGED, Entry, Status, standing
from flatline.journal.folder import (
    HYPOTHESES,
    LOG,
    PROBLEM,
    README,
    RESULTS,
    SETUP,
    Journal,
    Reading,
    load_json,
    part,
    read_text,
)

_LINK = re.compile(r"\[[^\]\n]*\]\(<?([^)>\s]+)>?[^)\n]*\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that does not hold together."""

    kind: str
    """A stable word for programs, such as `broken-link`."""
    file: str
    """Where, relative to the journal."""
    line: int | None = None
    text: str
    """What was seen and what to do."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "file": self.file, "line": self.line, "text": self.text}


def check(journal: Journal) -> list[Problem]:
    """Everything that is wrong, file by file."""
    reading = journal.read()
    found = [
        *_missing_files(journal),
        *_broken_files(reading),
        *_broken_links(journal),
        *_markers(journal, reading),
        *_codes(reading),
        *_table(journal, reading),
        *_verdicts(journal, reading),
        *_results(journal, reading),
    ]
    return sorted(found, key=lambda one: (one.file, one.line or 0, one.kind))


def _missing_files(journal: Journal) -> Iterator[Problem]:
    for name in (README, PROBLEM, LOG, SETUP):
        if not (journal.path / name).exists():
            text = "missing; `flatline journal init` adds what is not there."
            yield Problem(kind="missing-file", file=name, text=text)


def _broken_files(reading: Reading) -> Iterator[Problem]:
    for broken in reading.broken:
        seen = re.match(r".*?:(\d+): ", broken.error.splitlines()[0])
        yield Problem(
            kind="front-matter",
            file=_name(broken.file),
            line=int(seen[1]) if seen else None,
            text=broken.error[seen.end() :] if seen else broken.error,
        )


def _broken_links(journal: Journal) -> Iterator[Problem]:
    for file in sorted(journal.path.rglob("*.md")):
        try:
            text = read_text(file)
        except ConfigError as error:
            name = file.relative_to(journal.path).as_posix()
            yield Problem(kind="unreadable", file=name, text=str(error))
            continue
        for hidden in (frontmatter.BLOCK, _FENCE, _CODE):
            text = hidden.sub(_blank, text)
        for link in _LINK.finditer(text):
            goal = unquote(link[1].partition("#")[0])
            if goal and not re.match(r"[a-z][a-z+.-]*:|//", goal) and not _exists(file, goal):
                yield Problem(
                    kind="broken-link",
                    file=file.relative_to(journal.path).as_posix(),
                    line=text.count("\n", 0, link.start()) + 1,
                    text=f"links to {goal}, which does not exist. Fix the link or add the file.",
                )


def _exists(file: Path, goal: str) -> bool:
    try:
        return (file.parent / goal).exists()
    except (OSError, ValueError):
        return False


def _blank(found: re.Match[str]) -> str:
    """Nothing in its place, but as many lines."""
    return "\n" * found[0].count("\n")


def _markers(journal: Journal, reading: Reading) -> Iterator[Problem]:
    wanted: dict[str, tuple[str, ...]] = {README: ("status", "resolution")}
    wanted |= {_name(entry.file): ("results",) for entry in reading.entries}
    for name, needed in wanted.items():
        file = journal.path / name
        if not file.exists():
            continue
        try:
            there = markers.spans(read_text(file))
        except ConfigError as error:
            yield Problem(kind="markers", file=name, text=str(error).replace("The text:", "line "))
            continue
        for one in needed:
            if one not in there:
                start, end = markers.marks(one)
                text = f"has no `{start}` and `{end}`; flatline has no place to write. Add them."
                yield Problem(kind="markers", file=name, text=text)


def _codes(reading: Reading) -> Iterator[Problem]:
    from flatline.hypotheses import HYPOTHESES as REGISTRY

    registered = {one.id for one in REGISTRY}
    here = {entry.code for entry in reading.entries}
    for code, entries in reading.duplicates().items():
        files = " and ".join(entry.file.name for entry in entries)
        yield _about(
            entries[-1],
            "duplicate-code",
            "code",
            f"{code} is the code of {files}. Results go to one file only: give the other a code of "
            "its own, such as `U01`.",
        )
    for entry in reading.entries:
        if entry.code.startswith("H") and entry.code not in registered:
            text = f"flatline knows no {entry.code}; your own codes begin with U."
            yield _about(entry, "unknown-code", "code", text)
        for key, codes in (("related", entry.related), ("explains", entry.explains)):
            for code in sorted(set(codes) - registered - here):
                text = f"`{key}` names {code}, which is neither in this journal nor in flatline."
                yield _about(entry, "unknown-code", key, text)


def _table(journal: Journal, reading: Reading) -> Iterator[Problem]:
    file = journal.path / README
    try:
        shown = markers.between(read_text(file), "status") if file.exists() else None
    except ConfigError:
        return  # said elsewhere
    if shown is None:
        return
    rows = [[cell.strip() for cell in _CELLS.split(line)[1:-1]] for line in shown.splitlines()]
    by_link = {cells[0].rpartition("](")[2]: cells for cells in rows if len(cells) == 5}
    twice = reading.duplicates()
    for entry in reading.entries:
        expected = cells_of(entry, twice)
        cells = by_link.get(expected[0].rpartition("](")[2])
        update = "`flatline journal status` writes the table again."
        if cells is None:
            text = f"the table does not have {entry.code} ({entry.file.name}); {update}"
            yield Problem(kind="status-contradiction", file=README, text=text)
        elif cells[1:4] != expected[1:4]:
            text = (
                f"the table says {entry.code} is {', '.join(cells[1:4])}, its file "
                f"{', '.join(expected[1:4])}; {update}"
            )
            yield Problem(kind="status-contradiction", file=README, text=text)


def _verdicts(journal: Journal, reading: Reading) -> Iterator[Problem]:
    for entry in reading.entries:
        kept = [_load(journal, name) for name in entry.experiments]
        for name, one in zip(entry.experiments, kept, strict=True):
            if one is None:
                text = f"names {name}, but {RESULTS}/{name}.json is missing or cannot be read."
                yield _about(entry, "missing-result", "experiments", text)
        last = next((one for one in reversed(kept) if one is not None), None)
        if entry.status not in JUDGED:
            continue
        if last is None:
            yield _about(
                entry,
                "no-evidence",
                "status",
                f"{entry.code} is {entry.status} without the result of an experiment. "
                f"{_how_to_test(entry, journal)}, or set the status to pending.",
            )
        else:
            yield from _against(entry, last, journal)


def _how_to_test(entry: Entry, journal: Journal) -> str:
    if entry.code.startswith("H"):
        folder = shlex.quote(str(journal.path))
        return f"Type `flatline investigate {entry.code} --journal {folder}`"
    return f"Put its numbers into {RESULTS} and name them in `experiments`"


def _against(entry: Entry, last: Mapping[str, Any], journal: Journal) -> Iterator[Problem]:
    """What a status says against what its last experiment says."""
    said = last["verdict"]["verdict"]
    if said != entry.status:
        text = f"the file says {entry.status}, its last experiment {last['name']} says {said}."
        yield _about(entry, "status-contradiction", "status", text)
    elif (last["verdict"].get("confidence") or None) != entry.confidence:
        text = (
            f"the file says confidence {entry.confidence}, its last experiment {last['name']} "
            f"says {last['verdict'].get('confidence')}."
        )
        yield _about(entry, "status-contradiction", "confidence", text)
    if entry.status is not Status.INVALIDATED:
        return
    if part(last, "verdict", "mechanism", "control") not in ("present", "absent"):
        yield _about(
            entry,
            "mechanism-not-exercised",
            "status",
            f"{entry.code} is invalidated, but {last['name']} never saw whether its mechanism is "
            "there: the experiment did not touch it. Record what its sign needs, or call it "
            "inconclusive.",
        )
    yield from _other_task(entry, last, journal)


def _other_task(entry: Entry, last: Mapping[str, Any], journal: Journal) -> Iterator[Problem]:
    try:
        task = (journal.setup() or {}).get("task")
    except ConfigError:
        return
    arms = [*results.arms_of(last, "control"), *results.arms_of(last, "treated")]
    played = {part(arm, "config", "task") for arm in arms} - {None}
    if task and played - {task}:
        other = ", ".join(sorted(map(str, played - {task})))
        yield _about(
            entry,
            "mechanism-not-exercised",
            "status",
            f"{entry.code} ({standing(entry.code, entry.status).lower()}) rests on {last['name']}, "
            f"which ran {other}; {SETUP} is about {task}. Another task does not show what this one "
            f"does: test it on {task}.",
        )


def _results(journal: Journal, reading: Reading) -> Iterator[Problem]:
    """Experiments that no hypothesis file names: a recording was cut off, or a file was deleted."""
    named = {name for entry in reading.entries for name in entry.experiments}
    for file in sorted((journal.path / RESULTS).glob("*.json")):
        if file.stem not in named:
            yield Problem(
                kind="unrecorded-result",
                file=f"{RESULTS}/{file.name}",
                text="no hypothesis file names it in `experiments`. Run the command of that "
                "experiment again: its runs are kept, and the recording is completed.",
            )


def _load(journal: Journal, name: str) -> dict[str, Any] | None:
    kept = load_json(journal.path / RESULTS / f"{name}.json")
    return kept if kept is not None and results.is_whole(kept) else None


def _about(entry: Entry, kind: str, key: str, text: str) -> Problem:
    line = frontmatter.line_of(read_text(entry.file), key)
    return Problem(kind=kind, file=_name(entry.file), line=line, text=text)


def _name(file: Path) -> str:
    return f"{HYPOTHESES}/{file.name}"
