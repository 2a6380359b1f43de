"""Results of many cells in one file, small enough to keep beside the tables made of them.

Left out is what no table shows: the words of findings on faulty runs, and tracebacks. A long list
(held-out problems and rewards, hypotheses that cannot tell) is written once and named by its
number, since most cells share theirs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.cell import RESULT_FILE
from bench.plan import Kind
from bench.pool import CELLS, read_result
from flatline.errors import ConfigError
from flatline.files import json_in, write_atomically

VERSION = 1
LONG = 8
"""A list of so many is written once."""
_LIST = "list"
_HEALTHY = (Kind.REFERENCE, Kind.CALIBRATION, Kind.HELD_OUT)
_PEERS = "peers.json"


def pack(out: Path, file: Path) -> int:
    """Write every finished cell of a benchmark into one file. Returns how many."""
    paths = sorted((out / CELLS).glob(f"*/{RESULT_FILE}"))
    if not paths:
        raise ConfigError(
            f"{out} holds no finished cell of a benchmark.\nThere is nothing to pack.\n"
            f"Type `flatline bench --out {out}`."
        )
    lists: dict[str, int] = {}
    cells = [json.dumps(_shared(_short(_facts(path)), lists)) for path in paths]
    write_atomically(
        file,
        [
            f'{{"version": {VERSION}, "lists": [',
            *_joined(lists),
            '], "cells": [',
            *_joined(cells),
            "]}",
        ],
    )
    return len(paths)


def unpacked(file: Path) -> list[dict[str, Any]]:
    """What each cell of such a file came to."""
    try:
        found = json_in(file)
        if not isinstance(found, dict) or "version" not in found:
            raise ValueError("it is JSON, but not an object with a `version`")
        if found["version"] != VERSION:
            raise ValueError(f"it is of version {found['version']}, not {VERSION}")
        return [_whole(cell, found["lists"]) for cell in found["cells"]]
    except (KeyError, TypeError, IndexError) as error:
        raise _not_packed(file, f"what belongs there is missing or damaged ({error})") from error
    except (OSError, ValueError) as error:
        raise _not_packed(file, str(error)) from error


def _not_packed(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} holds no packed cells: {why}.\n"
        "`flatline bench report` takes the folder of a benchmark, or a file that "
        "`flatline bench pack` wrote."
    )


def _facts(path: Path) -> dict[str, Any]:
    peers = path.with_name(_PEERS)
    return read_result(path) | ({"peers": json_in(peers)} if peers.is_file() else {})


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    healthy = facts["cell"]["kind"] in _HEALTHY
    return {key: _told(value, healthy=healthy) for key, value in facts.items()}


def _told(value: Any, *, healthy: bool) -> Any:
    """The same without words; those of a false alarm stay."""
    if not isinstance(value, dict):
        return value
    kept = {key: _told(one, healthy=healthy) for key, one in value.items()}
    if "texts" in kept and not healthy:
        kept["texts"] = []
    return {**kept, "tail": kept["tail"][-1:]} if "tail" in kept else kept


def _shared(value: Any, lists: dict[str, int]) -> Any:
    if isinstance(value, Mapping):
        return {key: _shared(one, lists) for key, one in value.items()}
    if isinstance(value, list) and len(value) >= LONG:
        return {_LIST: lists.setdefault(json.dumps(value), len(lists))}
    return value


def _whole(value: Any, lists: list[list[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {_LIST}:
        return lists[value[_LIST]]
    return {key: _whole(one, lists) for key, one in value.items()}


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """One element a line, so that a change of one cell is a change of a few lines."""
    listed = list(lines)
    yield from (line + "," for line in listed[:-1])
    yield from listed[-1:]
