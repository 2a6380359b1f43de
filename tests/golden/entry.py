"""What is kept of one answer: a strict part, and its words."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from flatline.diagnosis.report import Report
from flatline.errors import FlatlineError

IN_ORDER = ("fault", "suspect", "note")
"""Levels whose order is part of the answer; of the others it says nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer."""

    strict: dict[str, Any]
    text: str


def entry_of(ask: Callable[[], Report]) -> Entry:
    """The answer to one case; what flatline refuses in words is an answer, too."""
    try:
        report = ask()
    except FlatlineError as error:
        return Entry({"outcome": f"refused: {type(error).__name__}"}, f"{error}\n")
    return Entry(strict_part(report.to_json()), f"{report}\n")


def strict_part(found: dict[str, Any]) -> dict[str, Any]:
    """What a rebuild may not change unseen."""
    findings = found["findings"]
    levels = {
        level: [one["hypothesis"] for one in ones]
        for level, ones in groupby(sorted(findings, key=_level), key=_level)
    }
    strict = {
        "outcome": found["outcome"],
        "troubles": _in_words(found["troubles"]),
        "causes": _in_words(one for one in findings if one["level"] in IN_ORDER),
        "explained": dict(sorted(found["explained_by"].items())),
        "lines": {
            one["hypothesis"]: one["where"][0]["function"] for one in findings if one["where"]
        },
    }
    rest = {name: " ".join(sorted(codes)) for name, codes in levels.items() if name not in IN_ORDER}
    return {name: value for name, value in (strict | rest).items() if value}


def _level(finding: dict[str, Any]) -> str:
    return str(finding["level"])


def _in_words(findings: Any) -> list[str]:
    return [f"{one['hypothesis']} {one['level']}" for one in findings]
