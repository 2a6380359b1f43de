"""The status table and the roadmap: for the terminal, for programs, and in README.md."""

from collections.abc import Iterable, Sequence
from typing import Any

from flatline.errors import ConfigError
from flatline.journal import markers
from flatline.journal.entry import LEVELS, Entry
from flatline.journal.folder import HYPOTHESES, README, Journal, Reading, read_text, write_text
from flatline.markdown import inline, one_line, target

SHORT = {"high": "HIGH", "medium": "MED", "low": "LOW"}
_PHASES = {
    "high": "Phase 1: high priority, test these first",
    "medium": "Phase 2: medium priority, if phase 1 does not resolve it",
    "low": "Phase 3: low priority, last resort",
}


def to_json(reading: Reading) -> dict[str, Any]:
    """The stable shape of `flatline journal status --json`."""
    twice = reading.duplicates()
    return {
        "hypotheses": [
            {
                "code": entry.code,
                "title": entry.title,
                "priority": entry.priority,
                "status": entry.status.value,
                "confidence": entry.confidence,
                "order": entry.order,
                "related": list(entry.related),
                "explains": list(entry.explains),
                "experiments": list(entry.experiments),
                "cost_minutes": entry.cost_minutes,
                "note": note_of(entry, twice),
                "file": f"{HYPOTHESES}/{entry.file.name}",
            }
            for entry in reading.entries
        ],
        "duplicates": sorted(twice),
        "broken": [
            {"file": f"{HYPOTHESES}/{b.file.name}", "error": b.error} for b in reading.broken
        ],
    }


def note_of(entry: Entry, duplicates: Iterable[str]) -> str:
    """The last column; that a code is used twice comes first."""
    twice = f"{entry.code} is used by two files. " if entry.code in duplicates else ""
    return one_line(twice + entry.note, limit=200)


def cells_of(entry: Entry, duplicates: Iterable[str]) -> list[str]:
    """One row of the table, as Markdown."""
    return [
        f"[{entry.code}: {inline(entry.title)}]({target(f'{HYPOTHESES}/{entry.file.name}')})",
        SHORT[entry.priority],
        entry.label,
        SHORT[entry.confidence] if entry.confidence else "-",
        inline(note_of(entry, duplicates)),
    ]


def table(reading: Reading) -> str:
    """The status table, as Markdown."""
    twice = reading.duplicates()
    rows = [cells_of(entry, twice) for entry in reading.entries]
    rows += [
        [f"{inline(b.file.name)}", "?", "?", "-", "its front matter cannot be read"]
        for b in reading.broken
    ]
    return markdown_table(["Hypothesis", "Priority", "Status", "Confidence", "Notes"], rows)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells must be Markdown already."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def roadmap(reading: Reading) -> str:
    """The plan as the front matter has it: phases by priority, each in test order."""
    phases = []
    for level in LEVELS:
        chosen = [entry for entry in reading.entries if entry.priority == level]
        chosen.sort(key=lambda entry: (entry.order, entry.code))
        if chosen:
            lines = [f"{i}. {_step(entry)}" for i, entry in enumerate(chosen, start=1)]
            phases.append("\n".join([f"### {_PHASES[level]}", "", *lines]))
    return "\n\n".join(phases) or "No hypothesis yet."


def _step(entry: Entry) -> str:
    cost = "" if entry.cost_minutes is None else f", up to {entry.cost_minutes:g} minutes"
    link = target(f"{HYPOTHESES}/{entry.file.name}")
    return f"[{entry.code}: {inline(entry.title)}]({link}){cost}. {entry.label}"


def refresh(journal: Journal) -> Reading:
    """Bring table and roadmap in README.md up to date. The caller holds the lock."""
    reading = journal.read()
    write_text(journal.path / README, readme(journal, reading))
    return reading


def is_current(journal: Journal, reading: Reading) -> bool:
    """Whether README.md says already what the front matter says."""
    file = journal.path / README
    return file.exists() and read_text(file) == readme(journal, reading)


def readme(journal: Journal, reading: Reading) -> str:
    """README.md with the table and the roadmap as they should be."""
    file = journal.path / README
    text = read_text(file) if file.exists() else ""
    markers.spans(text, file=file)
    with_table = markers.filled(text, "status", table(reading))
    if with_table is None:
        start, end = markers.marks("status")
        raise ConfigError(
            f"{file} has no place for the status table.\n"
            "flatline writes between its own markers only.\n"
            f"Put the lines `{start}` and `{end}` where the table should be."
        )
    # The roadmap is the person's to take out.
    return markers.filled(with_table, "roadmap", roadmap(reading)) or with_table
