"""A baseline: what is known and accepted, so that a build fails only on what is new.

    {"version": 1, "known": [{"hypothesis": "H44", "name": "data-order", "level": "suspect"}]}

What was a suspect and has become a fault is new: something is surer than it was.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatline.diagnosis.report import Report
from flatline.errors import ConfigError
from flatline.files import json_in
from flatline.hypotheses.base import ALARMS, Finding, Level

VERSION = 1


def baseline_of(report: Report) -> str:
    """The file: everything that alarms now, which a person has read and accepts."""
    known = [
        {"hypothesis": one.hypothesis, "name": one.name, "level": one.level.value}
        for one in _alarming(report)
    ]
    return json.dumps({"version": VERSION, "known": known}, indent=2) + "\n"


def against(report: Report, path: Path) -> Report:
    """The report, which says what of it is known."""
    accepted = _read(path)
    known = [one for one in _alarming(report) if one.level in accepted.get(one.hypothesis, ())]
    remark = f"{path} knows of {_named(known)}; only what is new counts."
    caveats = (remark, *report.caveats) if known else report.caveats
    return replace(report, known=tuple(one.hypothesis for one in known), caveats=caveats)


def _alarming(report: Report) -> list[Finding]:
    found = (*report.findings, *report.troubles)
    return [one for one in found if one.level in ALARMS]


def _named(known: Sequence[Finding]) -> str:
    return ", ".join(f"{one.hypothesis} {one.name}" for one in known)


def _read(path: Path) -> dict[str, tuple[Level, ...]]:
    """Code -> the levels that are accepted: the one that was seen, and what is less sure."""
    try:
        values = json_in(path)
    except OSError as error:
        raise ConfigError(
            f"--baseline {path} cannot be read: {error.strerror}.\n"
            f"Write it first, from a run that you accept: `flatline diagnose RUN --write-baseline "
            f"{path}`."
        ) from error
    except ValueError as error:
        raise _no_baseline(path, str(error)) from error
    if not isinstance(values, dict) or values.get("version") != VERSION:
        raise _no_baseline(path, f'it does not say `"version": {VERSION}`')
    return dict(_entry(path, one) for one in values.get("known") or ())


def _entry(path: Path, one: Any) -> tuple[str, tuple[Level, ...]]:
    try:
        return str(one["hypothesis"]), ALARMS[ALARMS.index(Level(one["level"])) :]
    except (KeyError, TypeError, ValueError) as error:
        raise _no_baseline(path, f"`known` has {json.dumps(one)[:80]}") from error


def _no_baseline(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"--baseline {path} is not a baseline: {why}.\n"
        f"Write it again: `flatline diagnose RUN --write-baseline {path}`."
    )
