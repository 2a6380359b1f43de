"""A run directory: `run.json` and the files of the tables."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from flatline.errors import TraceError
from flatline.files import json_in, sealed, unsealed, write_atomically
from flatline.text import encodable
from flatline.trace.account import Told, accounts_in
from flatline.trace.checksums import SUMS
from flatline.trace.chunked_table import Piece, Pieces, Segments
from flatline.trace.ending import Ending
from flatline.trace.files import (
    PARQUET,
    STREAM,
    FileName,
    ParquetPiece,
    StreamPiece,
    table_files,
)
from flatline.trace.lock import is_live
from flatline.trace.schema import SCHEMA_VERSION, TABLES

RUN_FILE = "run.json"
_LOST = f"{RUN_FILE} is missing or empty, so the settings are unknown."


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """What a run directory holds; tables are opened, not read."""

    run: dict[str, Any]
    """What `run.json` says; empty where it is lost."""
    tables: dict[str, Pieces]
    """Every table of the schema, in the pieces that were found."""
    warnings: list[str]
    """What cannot be read; grows while the tables are read."""
    stops: tuple[str, ...]
    """Where the recording broke off while the training went on, and why."""
    ending: Ending | None
    """The exception that the latest start of the run ended with, where one is known."""
    closed: bool
    """Whether the run was closed, or still goes on: else it was interrupted, crashed or killed."""

    @classmethod
    def open(cls, path: Path, *, only: Collection[str] = tuple(TABLES)) -> "Folder":
        """The folder; of the tables that are not in `only`, no file is opened."""
        warnings: list[str] = []
        names = table_files(path) if path.is_dir() else []
        if not names and not (path / RUN_FILE).is_file():
            raise _no_trace(path)
        run = _run_facts(path, warnings, needed=not names)
        told = accounts_in(path)
        warnings.extend(_unknown(told))
        pieces: dict[str, list[Piece]] = defaultdict(list)
        for name in (one for one in names if one.table in only):
            piece = _open_piece(path, name, warnings)
            if piece is not None:
                pieces[name.table].append(piece)
        segments = Segments(pieces["rollouts"], pieces["steps"])
        tables = {table: Pieces(table, pieces[table], segments) for table in TABLES}
        stops = tuple(_stops(told, segments))
        warnings.extend(stops)
        newest = max((name.segment for name in names), default=0)
        return cls(
            run=_with_accounts(run, told),
            tables=tables,
            warnings=warnings,
            stops=stops,
            ending=_ending([one for one in told if one.segment == newest]),
            closed=_is_closed(path, run, [one for one in told if one.segment == newest]),
        )


def read_run(path: Path, warn: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """`run.json`, or nothing where there is none."""
    try:
        found = json_in(path / RUN_FILE)
    except FileNotFoundError:
        return {}
    facts, sound = unsealed(found) if isinstance(found, dict) else ({}, True)
    if not sound:
        warn(
            f"{RUN_FILE} has changed since it was written, so its settings may differ from the "
            "run's. If you changed it yourself, take its `checksum` out as well."
        )
    try:
        known: dict[str, Any] = encodable(facts)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return known


def write_run(path: Path, facts: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(_plain(facts), default=str))
    write_atomically(path / RUN_FILE, [json.dumps(sealed(plain), indent=2)])


def _run_facts(path: Path, warnings: list[str], *, needed: bool) -> dict[str, Any]:
    try:
        run = read_run(path, warnings.append)
    except (OSError, ValueError) as error:
        if needed:
            raise _no_trace(path) from error
        warnings.append(f"{RUN_FILE} cannot be read, so the settings are unknown: {error}.")
        return {}
    if not run:
        warnings.append(_LOST)
    elif "schema" not in run and needed:
        raise _no_trace(path)
    elif "schema" not in run:
        warnings.append(f"{_LOST} What it says was written after the rest of it was lost.")
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
    for file in (parquet.with_name(parquet.name + SUMS), stream.with_suffix(SUMS)):
        # A stream begins with an empty file of checksums.
        if file.exists() and file.stat().st_size and not (parquet.exists() or stream.exists()):
            warn(f"The file that {file.name} is about is missing.")
    return None


def _unknown(told: Iterable[Told]) -> Iterator[str]:
    for one in told:
        if not one.sound:
            yield (
                f"recording.r{one.rank}.{one.segment}.json is damaged, so what the recording left "
                "out is not known."
            )


def _stops(told: Iterable[Told], segments: Segments) -> Iterator[str]:
    """Where recordings broke off; not where a later start of the run recorded it again."""
    for one in told:
        stop = one.facts.get("stopped")
        if not isinstance(stop, dict) or not isinstance(stop.get("step"), int):
            continue
        begins = [step for segment, step in segments.begins.items() if segment > one.segment]
        if min(begins, default=math.inf) > stop["step"] + 1:
            when = f"after step {stop['step']}" if stop["step"] else "before its first step ended"
            yield (
                f"The recording of process {one.rank} broke off {when}, and the training went on "
                f"without it: {stop.get('why')}."
            )


def _with_accounts(run: dict[str, Any], told: Iterable[Told]) -> dict[str, Any]:
    """With what a run that was not closed has told apart from `run.json`."""
    for one in told:
        run = merge_account(run, one.facts)
        whole = one.facts.get("whole")
        if isinstance(whole, dict):
            notes = run.get("notes")
            said = f"All was recorded, and the files could not be closed: {whole.get('why')}."
            run["notes"] = [*(notes if isinstance(notes, list) else []), said]
            run["ended"] = run.get("ended") or whole.get("ended")
    return run


def merge_account(run: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What every process left out, together."""
    both = (run, facts)
    dropped = sum(n for one in both if isinstance(n := one.get("dropped_tokens"), int))
    left_out = [part for one in both if isinstance(n := one.get("left_out"), list) for part in n]
    told = {"dropped_tokens": dropped, "left_out": left_out}
    return {**run, **{name: value for name, value in told.items() if value}}


def _is_closed(path: Path, run: dict[str, Any], latest: list[Told]) -> bool:
    """`latest` are the accounts of the latest start."""
    if not run and not latest:  # lost, which is reported: nobody knows
        return True
    ended = run.get("ended") and not latest
    whole = bool(latest) and all(isinstance(one.facts.get("whole"), dict) for one in latest)
    return bool(ended) or whole or is_live(path)


def _ending(latest: Iterable[Told]) -> Ending | None:
    """The exception of one process: an error, where another was interrupted because of it."""
    found = [one for told in latest if (one := Ending.read(told.facts.get("died")))]
    return next((one for one in found if one.failed), found[0] if found else None)


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
