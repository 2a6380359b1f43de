"""Peers on the cells of a benchmark: asked once, kept in `peers.json` beside `cell.json`."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cell import RUN
from bench.harm import harm_of
from bench.looks import LOG
from bench.peers import ASK, Opinion, ask, version_of
from bench.plan import Kind
from bench.results import SILENT, Look, Outcome
from bench.shares import share
from flatline.bench.harm import Verdict
from flatline.bench.shares import exact_share
from flatline.errors import ConfigError, FlatlineError
from flatline.files import write_atomically
from flatline.trace import Trace

FILE = "peers.json"
FLATLINE, LOG_ONLY = "flatline", "flatline, log only"


def pythons_of(given: Sequence[str]) -> dict[str, str]:
    """`NAME=PYTHON` texts as a table; a peer that is not installed there is refused."""
    pythons = {}
    for text in given:
        name, equals, python = text.partition("=")
        if not equals or name not in ASK:
            raise ConfigError(
                f"--peer {text!r} cannot be used.\nIt takes NAME=PYTHON with one of: "
                f"{', '.join(ASK)}; PYTHON is the interpreter of an environment that has it."
            )
        pythons[name] = python
    return pythons


def ask_all(
    outcomes: Sequence[Outcome], pythons: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Ask every peer about every cell that has a trace and no answer of it yet."""
    for name, python in pythons.items():
        number = _version(name, python)
        todo = [one for one in outcomes if name not in _kept(one) and (one.folder / RUN).is_dir()]
        for i, one in enumerate(todo, 1):
            say(f"{name} {number}: {i}/{len(todo)} {one.cell.name}")
            try:
                said = replace(ask(name, python, Trace.open(one.folder / RUN)), version=number)
            except FlatlineError as error:
                said = Opinion(version=number, failure=str(error))
            kept = {**_kept(one), name: said.to_json()}
            write_atomically(one.folder / FILE, [json.dumps(kept, indent=1)])


def compared(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """flatline, flatline with the log alone and every peer on the cells that all were asked about.

    Of flatline the first alarm of the last diagnosis counts, of a peer every alarm.
    """
    asked = {name: sum(name in _kept(one) for one in outcomes) for name in ASK}
    names = [name for name, count in asked.items() if count]
    runs = [one for one in outcomes if all(name in _kept(one) for name in names)] if names else []
    harm = harm_of(outcomes)
    hurting = [
        one
        for one in runs
        if one.cell.kind is Kind.FAULT
        and harm[one.cell.task, str(one.cell.fault)].verdict is Verdict.HURTS
    ]
    held_out = [one for one in runs if one.cell.kind is Kind.HELD_OUT]
    tools = [FLATLINE, LOG_ONLY, *names] if runs else []
    return {
        "asked": asked,
        "versions": sorted({f"{n} {_kept(one)[n]['version']}" for one in runs for n in names}),
        "tools": {tool: _figures(tool, hurting, held_out, runs) for tool in tools},
    }


def _figures(
    tool: str, hurting: Sequence[Outcome], held_out: Sequence[Outcome], runs: Sequence[Outcome]
) -> dict[str, Any]:
    return {
        "false_alarms": exact_share(sum(bool(_said(tool, x)[0]) for x in held_out), len(held_out)),
        "noticed": share(hurting, [bool(_said(tool, one)[0]) for one in hurting]),
        "cause": share(hurting, [_points(tool, one) for one in hurting]),
        "failed": sum(_failed(tool, one) for one in runs),
    }


def _points(tool: str, one: Outcome) -> bool:
    return bool(set(one.cell.first) & set(_said(tool, one)[1]))


def _said(tool: str, one: Outcome) -> tuple[Sequence[str], Sequence[str]]:
    """Alarms of a tool on a run, and the hypotheses that they count for."""
    if tool in ASK:
        found = _kept(one)[tool]
        return found["alarms"], found["means"]
    look = _own(tool, one)
    return look.alarms, look.alarms[:1]


def _failed(tool: str, one: Outcome) -> bool:
    """Whether it gave no answer; a look of flatline's own that broke down asked nothing."""
    if tool in ASK:
        return bool(_kept(one)[tool].get("failure"))
    return not _own(tool, one).asked


def _own(tool: str, one: Outcome) -> Look:
    return one.last if tool == FLATLINE else one.ablation.get(LOG, SILENT)


def _version(name: str, python: str) -> str:
    try:
        return version_of(name, python)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"{python} has no {name}: {' '.join(str(error).split())[-200:]}\n"
            "Without it the peer cannot be asked.\n"
            f"Type `python -m venv ENV && ENV/bin/pip install {name}`, then "
            f"`--peer {name}=ENV/bin/python`."
        ) from error


def _kept(one: Outcome) -> dict[str, Any]:
    path: Path = one.folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else one.peers
    except ValueError as error:
        raise ConfigError(
            f"{path} is no JSON: {error}.\nRemove it; the peers are asked again."
        ) from error
    return dict(found)
