"""A run directory: `run.json` and the files of the tables."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from flatline.errors import TraceError
from flatline.files import json_in, write_atomically
from flatline.trace.files import PARQUET, STREAM, FileName, ParquetPiece, StreamPiece
from flatline.trace.pieces import Piece, Pieces, Segments
from flatline.trace.schema import SCHEMA_VERSION, TABLES

RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """What a run directory holds; tables are opened, not read."""

    run: dict[str, Any]
    """What `run.json` says; empty where it is lost."""
    tables: dict[str, Pieces]
    """Every table of the schema, in the pieces that were found."""
    warnings: list[str]
    """What cannot be read; grows while the tables are read."""

    @classmethod
    def open(cls, path: Path, *, only: Collection[str] = tuple(TABLES)) -> "Folder":
        """The folder; of the tables that are not in `only`, no file is opened."""
        warnings: list[str] = []
        names = table_files(path) if path.is_dir() else []
        if not names and not (path / RUN_FILE).is_file():
            raise _no_trace(path)
        run = _run_facts(path, warnings, needed=not names)
        pieces: dict[str, list[Piece]] = defaultdict(list)
        for name in (one for one in names if one.table in only):
            piece = _open_piece(path, name, warnings)
            if piece is not None:
                pieces[name.table].append(piece)
        segments = Segments(pieces["rollouts"], pieces["steps"])
        tables = {table: Pieces(table, pieces[table], segments) for table in TABLES}
        return cls(run=run, tables=tables, warnings=warnings)


def table_files(path: Path) -> list[FileName]:
    """Every table file, parquet or stream, once; in order of segment and rank."""
    found = {FileName.parse(entry.name) for entry in path.iterdir()}
    return sorted(
        (name for name in found if name), key=lambda name: (name.table, name.segment, name.rank)
    )


def read_run(path: Path) -> dict[str, Any]:
    """`run.json`, or nothing where there is none."""
    try:
        found = json_in(path / RUN_FILE)
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def write_run(path: Path, facts: Mapping[str, Any]) -> None:
    text = json.dumps(_plain(facts), indent=2, default=str)
    write_atomically(path / RUN_FILE, [text])


def _run_facts(path: Path, warnings: list[str], *, needed: bool) -> dict[str, Any]:
    try:
        run = read_run(path)
    except (OSError, ValueError) as error:
        if needed:
            raise _no_trace(path) from error
        warnings.append(f"{RUN_FILE} cannot be read, so the settings are unknown: {error}.")
        return {}
    if not run:
        warnings.append(f"{RUN_FILE} is missing or empty, so the settings are unknown.")
    elif "schema" not in run and needed:
        raise _no_trace(path)
    elif run.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise TraceError(
            f"{path} was recorded with trace schema {run['schema']}; this flatline reads schema "
            f"{SCHEMA_VERSION}.\nColumns may mean something else there, so nothing is guessed.\n"
            f"Read it with flatline {run.get('flatline', 'of another version')}."
        )
    return run


def _open_piece(path: Path, name: FileName, warnings: list[str]) -> Piece | None:
    def warn(text: str) -> None:
        if text not in warnings:
            warnings.append(text)

    parquet, stream = path / f"{name}{PARQUET}", path / f"{name}{STREAM}"
    # Both are there where a run was killed between writing the one and removing the other; and a
    # run that ends just now may replace the one by the other between two looks.
    for file, kind in ((parquet, ParquetPiece), (stream, StreamPiece), (parquet, ParquetPiece)):
        try:
            return kind(file, name, warn)
        except FileNotFoundError:
            continue
        except (OSError, pa.ArrowException, ValueError) as error:
            warn(f"{file.name} cannot be read at all: {error}.")
    return None


def _no_trace(path: Path) -> TraceError:
    if not path.exists():
        seen = f"There is no {path}."
    elif not path.is_dir():
        seen = f"{path} is a file, and a trace is a directory."
    else:
        seen = f"No trace in {path}: it has neither a {RUN_FILE} with a `schema` nor table files."
    return TraceError(
        f"{seen}\nflatline reads runs that were recorded while they trained.\n"
        "Record one with `flatline train`, or with `flatline.attach(trainer, run_dir)` in a script."
    )


def _plain(value: Any) -> Any:
    """Without NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # a numpy number
        return _plain(value.item())
    return value
