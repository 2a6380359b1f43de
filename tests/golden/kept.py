"""The kept answers: `strict/GROUP.json` and `text/GROUP/CASE.txt`."""

import functools
import json
from pathlib import Path
from typing import Any

from tests.golden.entry import Entry

HERE = Path(__file__).parent


def kept(group: str, name: str) -> Entry | None:
    """None where nothing is kept of this case."""
    text = _text_of(group, name)
    strict = _strict(group).get(name)
    return None if strict is None or not text.is_file() else Entry(strict, text.read_text())


def names_kept() -> set[tuple[str, str]]:
    """Group and name of every kept answer."""
    groups = [path.stem for path in (HERE / "strict").glob("*.json")]
    return {(group, name) for group in groups for name in _strict(group)}


def keep_all(found: dict[tuple[str, str], Entry]) -> None:
    """Keeps answers; what is kept of other cases stays."""
    for group in sorted({group for group, _ in found}):
        mine = {name: entry for (of, name), entry in found.items() if of == group}
        strict = dict(sorted((_strict(group) | {n: e.strict for n, e in mine.items()}).items()))
        path = HERE / "strict" / f"{group}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(strict, indent=1, ensure_ascii=False) + "\n")
        for name, entry in mine.items():
            text = _text_of(group, name)
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(entry.text)


@functools.cache
def _strict(group: str) -> dict[str, Any]:
    path = HERE / "strict" / f"{group}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _text_of(group: str, name: str) -> Path:
    return HERE / "text" / group / f"{name}.txt"
