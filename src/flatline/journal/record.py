"""Writes the result of an experiment into the journal.

Each file is written whole or not at all, the numbers first and the table last. A recording that was
cut off is completed by doing it again, and doing it again changes nothing: the same result makes
the same text, and an entry of the log is known by a digest of its numbers.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from flatline.errors import ConfigError
from flatline.journal import board, frontmatter, markers, pages, results
from flatline.journal.entry import Entry, Status, read_entry
from flatline.journal.fixes import fix_text
from flatline.journal.folder import (
    FIXES,
    LOG,
    RESULTS,
    Journal,
    load_json,
    read_text,
    write_text,
)
from flatline.journal.new import add_known
from flatline.markdown import inline, one_line

_T = TypeVar("_T")
NOTE = 160
"""Characters of a reason that the table shows."""


def update_status(journal: Journal, code: str, status: str, confidence: str | None = None) -> Entry:
    """Say that a hypothesis is being tested; a verdict comes with `record`. Returns the entry as it
    was."""
    with journal.lock():
        entry = _entry(journal, code)
        changes = {"status": Status(status).value, "confidence": confidence}
        _change(entry.file, lambda text: frontmatter.changed(text, changes, entry.file))
        board.refresh(journal)
    return entry


def record(
    journal: Journal,
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    verdict: Mapping[str, Any],
    curves: Mapping[str, Any] | None = None,
) -> None:
    """Write one result everywhere it belongs. What fails is raised after the rest is written."""
    kept = results.stored(plan, result, verdict, curves)
    name = kept["name"]
    with journal.lock():
        _refuse_another(journal, kept)
        lines = json.dumps(kept, indent=1, ensure_ascii=False, allow_nan=False)
        write_text(journal.path / RESULTS / f"{name}.json", lines + "\n")
        errors: list[ConfigError] = []
        entry = _attempt(errors, lambda: _entry(journal, kept["hypothesis"]))
        _attempt(errors, lambda: _write_page(journal, kept, entry))
        if entry is not None:
            if verdict["verdict"] == Status.VALIDATED:
                _attempt(errors, lambda: _write_fix(journal, kept, entry))
            _attempt(errors, lambda: _write_hypothesis(journal, kept, entry))
        _attempt(errors, lambda: _append_to_log(journal, kept, entry))
        _attempt(errors, lambda: board.refresh(journal))
    if errors:
        raise ConfigError(
            "\n".join(str(error) for error in errors)
            + f"\nThe numbers are safe in {RESULTS}/{name}.json; fix this and type the same "
            "command again."
        )


def _attempt(errors: list[ConfigError], work: Callable[[], _T]) -> _T | None:
    """A result that cost hours is not lost because somebody's file has a typing error."""
    try:
        return work()
    except ConfigError as error:
        errors.append(error)
        return None


def _refuse_another(journal: Journal, kept: Mapping[str, Any]) -> None:
    file = journal.path / RESULTS / f"{kept['name']}.json"
    there = load_json(file) or kept
    if there.get("hypothesis") != kept["hypothesis"]:
        raise ConfigError(
            f"{file} holds a result about {there.get('hypothesis')!r:.20}, and this one is about "
            f"{kept['hypothesis']}.\nOne of the two would be lost.\n"
            "Give the experiment another name."
        )


def _entry(journal: Journal, code: str) -> Entry:
    """The hypothesis of a code; a file is made for one that flatline knows."""
    from flatline.hypotheses import find

    entry = journal.find(code)
    if entry is None:
        file = add_known(journal, find(code), journal.read().entries)
        entry = read_entry(read_text(file), file)
    return entry


def _write_page(journal: Journal, kept: Mapping[str, Any], entry: Entry | None) -> None:
    file = journal.path / RESULTS / f"{kept['name']}.md"
    head = f"# Experiment {inline(kept['name'])}\n"
    _put(file, "result", pages.page(kept, entry), head=head)


def _write_fix(journal: Journal, kept: Mapping[str, Any], entry: Entry) -> None:
    head = f"# Fix for {entry.code}: {inline(entry.title)}\n"
    _put(journal.path / FIXES / entry.file.name, "fix", fix_text(kept, entry), head=head)


def _write_hypothesis(journal: Journal, kept: Mapping[str, Any], entry: Entry) -> None:
    """The verdict that stands is that of the experiment that was begun last."""
    name = kept["name"]
    names = dict.fromkeys([*entry.experiments, name])
    known = [(one, _whole(journal.path / RESULTS / f"{one}.json")) for one in names]
    verdict = next(one["verdict"] for _, one in reversed(known) if one is not None)
    changes = {
        "status": verdict["verdict"],
        "confidence": verdict.get("confidence"),
        "experiments": [name],
        "note": one_line(verdict.get("reason") or "", limit=NOTE),
    }

    def change(text: str) -> str:
        text = frontmatter.changed(text, changes, entry.file)
        return _with_section(text, "results", pages.results_text(known), file=entry.file)

    _change(entry.file, change)


def _whole(file: Path) -> dict[str, Any] | None:
    kept = load_json(file)
    return kept if kept is not None and results.is_whole(kept) else None


def _append_to_log(journal: Journal, kept: Mapping[str, Any], entry: Entry | None) -> None:
    file = journal.path / LOG
    text = read_text(file) if file.exists() else "# Experiments log\n"
    name = f"{kept['name']}-{results.digest(kept)}"
    if markers.marks(name)[0] in text:
        return
    body = pages.log_entry(kept, entry, datetime.now(UTC).date())
    write_text(file, markers.appended(text, name, body))


def _put(file: Path, name: str, body: str, *, head: str) -> None:
    text = read_text(file) if file.exists() else head
    write_text(file, _with_section(text, name, body, file=file))


def _change(file: Path, change: Callable[[str], str]) -> None:
    write_text(file, change(read_text(file)))


def _with_section(text: str, name: str, body: str, *, file: Path) -> str:
    markers.spans(text, file=file)
    made = markers.filled(text, name, body)
    if made is not None:
        return made
    heading = "## Results" if name == "results" else ""
    return markers.appended(text, name, body, heading=heading)
