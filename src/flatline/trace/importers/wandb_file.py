"""W&B's own `.wandb` file, as every run leaves it in `wandb/run-*` or `wandb/offline-run-*`.

Seven bytes of header, then the log format of LevelDB: blocks of 32 KiB, each record in one or more
pieces with a CRC-32 over type and data. A record is a protobuf `Record`. Of these the history (one
row per call of `wandb.log`) and the configuration are read; values are JSON text.
"""

import struct
import zlib
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.files import mapped
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.text import ANYWHERE, head, inside, parsed, unreadable
from flatline.trace.importers.wire import fields, messages, text

MAGIC = b":W&B"
_HEADER, _BLOCK = 7, 32768
_PIECE = struct.Struct("<IHB")  # CRC, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MAX_RECORD = 64 * 2**20
_MOST_DAMAGED = 1000
_HISTORY, _CONFIG, _RUN = 2, 5, 17  # fields of Record
_RUN_ID, _ENTITY, _PROJECT, _RUN_CONFIG = 1, 2, 3, 4  # fields of RunRecord


def find_wandb(folder: Path) -> list[Path]:
    """The `.wandb` files of a run folder, or of the `wandb` folder above the runs."""
    found = [*folder.glob("*.wandb"), *folder.glob("*run-*/*.wandb")]
    found += folder.glob("wandb/*run-*/*.wandb")
    # `latest-run` is a link to one of the others.
    known = {path.resolve(): path for path in found if path.is_file()}
    return sorted(inside(folder, known.values()))


def read_wandb(path: Path) -> Log:
    """The history of a run. A file that ends inside a record is one still being written."""
    if head(path, len(MAGIC)) != MAGIC:
        raise TraceError(
            f"{path} does not begin with {MAGIC!r}, so it is no W&B run file.\n"
            "Give the `run-*.wandb` file of a run, or its exported history as CSV."
        )
    log = Log(source="wandb", path=path)
    try:
        # Console output and tables can make the file larger than the memory.
        for number, record in _records(mapped(path, within=ANYWHERE), log):
            _take(log, number, record)
    except OSError as error:
        raise unreadable(path, error) from error
    return log


def identity_of(path: Path) -> tuple[str | None, str | None, str]:
    """The entity, the project and the id under which W&B knows the run."""
    log = Log(source="wandb", path=path)
    try:
        for _, record in _records(mapped(path, within=ANYWHERE), log):
            for found in messages(record, _RUN):
                named = {field: text(value) for field, value in fields(found) if field < 4}
                return named.get(_ENTITY), named.get(_PROJECT), named[_RUN_ID]
    except (OSError, ValueError, KeyError) as error:
        raise _nameless(path, str(error)) from error
    raise _nameless(path, "no record names it")


def _nameless(path: Path, why: str) -> TraceError:
    return TraceError(
        f"{path} does not say which run it is: {why}.\n"
        "Name the run itself, as ENTITY/PROJECT/RUN or PROJECT/RUN."
    )


def _records(data: mmap | bytes, log: Log) -> Iterator[tuple[int, bytes]]:
    """Numbered records whose pieces are all there and whole."""
    record: bytearray | None = None
    number = 1
    for kind, piece in _pieces(data, log):
        if kind in (_FULL, _FIRST):
            record = bytearray()
        elif record is None:
            continue  # its beginning was damaged
        record += piece
        if len(record) > _MAX_RECORD:
            log.bad.append(f"record {number}: longer than {_MAX_RECORD // 2**20} MiB")
            record = None
        elif kind in (_FULL, _LAST):
            yield number, bytes(record)
            number, record = number + 1, None


def _pieces(data: mmap | bytes, log: Log) -> Iterator[tuple[int, bytes]]:
    at, damaged = _HEADER, 0
    while at + _PIECE.size <= len(data):
        room = _BLOCK - at % _BLOCK
        if room < _PIECE.size:  # too little for a header: padding
            at += room
            continue
        check, size, kind = _PIECE.unpack_from(data, at)
        start = at + _PIECE.size
        piece = data[start : start + size]
        if len(piece) < size:
            log.notes.append(f"The file ends in the middle of a record, at byte {at}.")
            return
        sound = kind in (_FULL, _FIRST, _MIDDLE, _LAST) and _PIECE.size + size <= room
        if sound and zlib.crc32(piece, zlib.crc32(bytes([kind]))) == check:
            yield kind, piece
            at = start + size
        else:
            log.bad.append(f"byte {at}: a damaged record (its checksum does not fit)")
            damaged += 1
            if damaged == _MOST_DAMAGED:  # a file of nothing but zeros may have any size
                log.bad.append(f"byte {at}: nothing after {damaged} damaged records is read")
                return
            at += room  # records are found again at the next block


def _take(log: Log, number: int, record: bytes) -> None:
    """Add what a record has; one that is no message is counted and left out."""
    try:
        _read(log, f"record {number}", record)
    except ValueError as error:
        log.bad.append(f"record {number}: {error}")


def _read(log: Log, place: str, record: bytes) -> None:
    for field, value in fields(record):
        if not isinstance(value, bytes):
            continue
        if field == _HISTORY:
            log.entries.append(Entry(place, _items(value)))
        elif field == _CONFIG:
            log.config.update(_items(value))
        elif field == _RUN:
            for config in messages(value, _RUN_CONFIG):
                log.config.update(_items(config))


def _items(message: bytes) -> dict[str, Any]:
    """The items of a HistoryRecord or the updates of a ConfigRecord: both are field 1."""
    found: dict[str, Any] = {}
    for item in messages(message, 1):
        names, value = [], None
        for field, content in fields(item):
            if field in (1, 2):  # key, or the parts of a nested one
                names.append(text(content))
            elif field == 16:
                value = parsed(text(content))
        found["/".join(name for name in names if name)] = value
    return found
