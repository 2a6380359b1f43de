"""TensorBoard event files, as `SummaryWriter` of PyTorch, tensorboardX and TensorFlow write them.

Records are framed as in TFRecord: length, CRC of the length, data, CRC of the data, with a masked
CRC-32C. A record is a protobuf `Event`; of its summary, scalars are read in the old form
(`simple_value`) and in the new one (a tensor with one number). They are 32-bit floats as a rule, so
a reward of 0.1 comes back as 0.10000000149.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.text import inside, opened, unreadable
from flatline.trace.importers.wire import Value, fields, floats, signed, text

NAME = "tfevents"
_HEADER = struct.Struct("<QI")  # length of the data, CRC of the length
_MAX_RECORD = 64 * 2**20
_LARGEST = 2**16
"""Bytes. Larger records are images and graphs, over whose CRC Python would take long; skipped."""
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # fields of Event
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8  # fields of Summary.Value
_DTYPE, _CONTENT = 1, 4  # fields of TensorProto
_TYPED = {5: "f", 6: "d"}  # float_val, double_val of TensorProto
_CODES = {1: "f", 2: "d"}  # DT_FLOAT, DT_DOUBLE


def find_events(folder: Path) -> list[Path]:
    """The event files of one run, oldest first: their names begin with the time of their start."""
    for pattern in (f"*{NAME}*", f"*/*{NAME}*", f"runs/*/*{NAME}*"):
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return inside(folder, found)
    return []


def read_events(path: Path, files: list[Path]) -> Log:
    """The scalars of a run, one row per step and file position."""
    log = Log(source="tensorboard", path=path)
    for file in files:
        rows: list[Entry] = []
        for number, data in _records(file, log):
            try:
                _take(rows, f"{file.name} record {number}", data)
            except ValueError as error:
                log.bad.append(f"{file.name} record {number}: {error}")
        log.entries.extend(rows)
    return log


def _records(path: Path, log: Log) -> Iterator[tuple[int, bytes]]:
    """Numbered records, until the file ends or a length cannot be trusted."""
    try:
        with opened(path) as file:
            number = 0
            while header := file.read(_HEADER.size):
                number += 1
                size = _length(header)
                if size is None:
                    log.bad.append(f"{path.name} record {number}: a damaged length; reading stops")
                    return
                data = file.read(size + 4)
                if len(header) < _HEADER.size or len(data) < size + 4:
                    log.notes.append(f"{path.name} ends in the middle of record {number}.")
                    return
                yield number, data
    except OSError as error:
        raise unreadable(path, error) from error


def _length(header: bytes) -> int | None:
    if len(header) < _HEADER.size:
        return 0  # the end of a file that is still being written
    size, check = _HEADER.unpack(header)
    return int(size) if size <= _MAX_RECORD and _masked_crc(header[:8]) == check else None


def _take(rows: list[Entry], place: str, framed: bytes) -> None:
    """Add the scalars of an event to the row of its step; tags arrive one by one."""
    data = framed[:-4]
    if len(data) > _LARGEST:
        return
    if struct.pack("<I", _masked_crc(data)) != framed[-4:]:
        raise ValueError("damaged: its checksum does not fit")
    step, when, scalars = 0, None, {}
    for field, value in fields(data):
        if field == _STEP and isinstance(value, int):
            step = signed(value)
        elif field == _WALL_TIME and isinstance(value, bytes):
            when = floats(value, "d")[0]
        elif field == _SUMMARY and isinstance(value, bytes):
            scalars.update(_scalars(value))
    if not scalars:
        return
    last = rows[-1].values if rows else {}
    if last.get("step") == step and not scalars.keys() & last.keys():
        last.update(scalars)
    else:
        rows.append(Entry(place, {"step": step, "wall_time": when, **scalars}))


def _scalars(summary: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in fields(summary):
        if field != 1 or not isinstance(value, bytes):
            continue
        parts: dict[int, Value] = dict(fields(value))
        number = _number(parts)
        if number is not None and _TAG in parts:
            found[text(parts[_TAG])] = number
    return found


def _number(parts: dict[int, Value]) -> float | None:
    simple, tensor = parts.get(_SIMPLE_VALUE), parts.get(_TENSOR)
    if isinstance(simple, bytes):
        return floats(simple, "f")[0]
    if not isinstance(tensor, bytes):
        return None
    inner: dict[int, Value] = dict(fields(tensor))
    for field, code in _TYPED.items():
        typed = inner.get(field)
        if isinstance(typed, bytes):
            return _only(floats(typed, code))
    content, dtype = inner.get(_CONTENT), inner.get(_DTYPE)
    if isinstance(content, bytes) and isinstance(dtype, int) and dtype in _CODES:
        return _only(floats(content, _CODES[dtype]))
    return None


def _only(numbers: list[float]) -> float | None:
    """A histogram is a tensor too, with more than one number."""
    return numbers[0] if len(numbers) == 1 else None


def _table() -> list[int]:
    """CRC-32C, Castagnoli's polynomial, which zlib does not have."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
