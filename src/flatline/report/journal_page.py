"""The page of a journal: the answer, the board, the roadmap, the log, and every file."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatline.errors import ConfigError
from flatline.journal import markers
from flatline.journal.board import note_of
from flatline.journal.entry import CONTROL, Entry, Status, standing
from flatline.journal.folder import (
    FIXES,
    HYPOTHESES,
    LOG,
    PROBLEM,
    README,
    RESULTS,
    Journal,
    Reading,
    load_json,
    part,
    read_text,
)
from flatline.report.experiment_page import LEVELS
from flatline.report.journal_answer import answer_of, estimate_in
from flatline.report.markdown import rendered
from flatline.report.pages import render

LONGEST_FILE = 400_000
"""Characters of one file in the page; of the log the newest are kept."""
MOST_RESULTS = 300
"""Experiments in the table, the newest by name."""


def journal_page(folder: Path) -> str:
    """One self-contained page of a journal's folder."""
    return render("journal.html", journal_context(folder))


def journal_context(folder: Path) -> dict[str, Any]:
    """What the template `journal.html` shows."""
    journal = Journal.open(folder)
    reading = journal.read()
    texts = dict(_texts(journal))
    anchors = {name: _anchor(name) for name in texts}
    return {
        "title": folder.resolve().name,
        "board": _board(reading, anchors),
        "answer": answer_of(journal, reading),
        "anchors": {entry.file: _file_anchor(entry, anchors) for entry in reading.entries},
        "counts": _counts(reading),
        "broken": [(broken.file.name, broken.error) for broken in reading.broken],
        "duplicates": sorted(reading.duplicates()),
        "results": _results(journal),
        "places": {},
        "files": [
            {"name": name, "id": anchors[name], "markup": _markup(name, text, anchors)}
            for name, text in texts.items()
        ],
    }


def _board(reading: Reading, anchors: Mapping[str, str]) -> list[dict[str, Any]]:
    twice = reading.duplicates()
    return [
        {
            "entry": entry,
            "level": _level(entry),
            "note": note_of(entry, twice),
            "anchor": _file_anchor(entry, anchors),
        }
        for entry in reading.entries
    ]


def _level(entry: Entry) -> str:
    if entry.code == CONTROL and entry.status in (Status.VALIDATED, Status.INVALIDATED):
        return "suspect" if entry.status is Status.VALIDATED else "ok"
    return LEVELS.get(entry.status.value, "unknown")


def _file_anchor(entry: Entry, anchors: Mapping[str, str]) -> str | None:
    return anchors.get(f"{HYPOTHESES}/{entry.file.name}")


def _counts(reading: Reading) -> str:
    """How many hypotheses stand where; the control, which is no cause, by what it found."""
    if not reading.entries:
        return "No hypothesis yet."
    counted = Counter(one.status.value for one in reading.entries if one.code != CONTROL)
    listed = [f"{number} {status}" for status, number in counted.items()]
    listed += [
        f"{one.title}: {standing(one.code, one.status).lower()}"
        for one in reading.entries
        if one.code == CONTROL
    ]
    return f"{len(reading.entries)} hypotheses: {', '.join(listed)}."


def _texts(journal: Journal) -> Iterator[tuple[str, str]]:
    """Every Markdown file of the journal, in the order of the page."""
    top = [journal.path / name for name in (README, PROBLEM, LOG)]
    folders = [journal.path / name for name in (HYPOTHESES, FIXES)]
    below = [file for folder in folders for file in sorted(folder.glob("*.md"))]
    for file in (*top, *below):
        if file.exists() or file.is_symlink():  # one that leads nowhere is reported, too
            yield file.relative_to(journal.path).as_posix(), _text(file)


def _text(file: Path) -> str:
    """A file, without the table that the board shows; or why it cannot be read."""
    try:
        text = read_text(file)
        without = markers.filled(text, "status", "See the board above.")
    except ConfigError as error:
        return str(error)
    return text if without is None else without


def _markup(name: str, text: str, anchors: Mapping[str, str]) -> Markup:
    if len(text) > LONGEST_FILE:
        kept = text[-LONGEST_FILE:] if name == LOG else text[:LONGEST_FILE]
        text = f"*{len(text) - LONGEST_FILE:,} characters are left out; see the file.*\n\n{kept}"
    folder = name.rpartition("/")[0]
    return rendered(text, anchors=anchors, folder=folder)


def _results(journal: Journal) -> list[dict[str, Any]]:
    """Verdicts of recorded experiments; a file that cannot be read says so in its row."""
    files = sorted((journal.path / RESULTS).glob("*.json"))[-MOST_RESULTS:]
    return [_result(file.stem, load_json(file)) for file in files]


def _result(name: str, kept: Mapping[str, Any] | None) -> dict[str, Any]:
    said = {key: part(kept or {}, "verdict", key) for key in ("hypothesis", "verdict", "reason")}
    if said["verdict"] in list(Status):
        said["verdict"] = standing(str(said["hypothesis"]), Status(said["verdict"])).lower()
    effect = estimate_in(part(kept or {}, "verdict", "effect"))
    return {"name": name, "readable": kept is not None, "effect": effect, **said}


def _anchor(name: str) -> str:
    """A place in the page for a file."""
    return "file-" + "".join(char if char.isalnum() else "-" for char in name.removesuffix(".md"))
