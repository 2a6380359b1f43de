"""The files of a table: Arrow streams while a run writes, parquet once it has ended.

A stream grows by whole messages. Beside it a `.crc` file gains one line for each, `start end
crc32`, after the message itself is written: what has a line was complete, and what no longer
matches its line is damaged. Arrow alone would read a flipped bit as data. The stream stays one that
any Arrow reader takes. Parquet has checksums of its own.
"""

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from flatline.errors import TraceError
from flatline.files import bytes_in, mapped
from flatline.trace.pieces import chunks_of
from flatline.trace.schema import SCHEMA_VERSION, TABLES
from flatline.trace.trusted import batch_in, refuse_absurd, refuse_other_columns

STREAM, PARQUET, SUMS = ".arrow", ".parquet", ".crc"
VERSION_KEY = b"flatline_schema"
_NAME = re.compile(r"([a-z]+)\.r(\d+)\.(\d+)\.(?:arrow|parquet)")
_DAMAGED = (OSError, pa.ArrowException, ValueError, EOFError)
ROW_GROUP_BYTES = 8 * 2**20
"""What compaction holds in memory at once, and the least that is later read of a column: one
rollout of a large run should not cost the tokens of a hundred thousand others."""


class FileName(NamedTuple):
    """`rollouts.r0.2.arrow` is what process 0 wrote after its third start."""

    table: str
    rank: int
    segment: int

    @classmethod
    def parse(cls, name: str) -> "FileName | None":
        found = _NAME.fullmatch(name)
        if found is None or found[1] not in TABLES:
            return None
        return cls(found[1], int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"{self.table}.r{self.rank}.{self.segment}"


def versioned(schema: pa.Schema) -> pa.Schema:
    return schema.with_metadata({VERSION_KEY: str(SCHEMA_VERSION)})


class StreamFile:
    """A stream that is being written."""

    def __init__(self, path: Path, table: str) -> None:
        self.path, self.table = path, table
        self._end = 0
        self._lines: list[str] = []
        self._file = path.open("xb")
        self._sums = path.with_suffix(SUMS).open("x", encoding="ascii")
        self._append(versioned(TABLES[table]).serialize())
        self.flush()

    def append(self, batch: pa.RecordBatch) -> None:
        self._append(batch.serialize())

    def flush(self) -> None:
        """Hand everything to the system: from here on a killed process loses none of it."""
        self._file.flush()
        self._sums.writelines(self._lines)
        self._sums.flush()
        self._lines.clear()

    def close(self) -> None:
        self._file.close()
        self._sums.close()

    def _append(self, message: pa.Buffer) -> None:
        self._file.write(message)
        start, self._end = self._end, self._end + len(message)
        self._lines.append(f"{start} {self._end} {zlib.crc32(message):08x}\n")


class StreamPiece:
    """A stream that is read; it may still grow, and may be damaged."""

    def __init__(self, path: Path, name: FileName, warn: Callable[[str], None]) -> None:
        self.name, self.segment, self.table = path.name, name.segment, name.table
        self._warn = warn
        # Before the stream, which may grow in between: what has a line must then be there.
        sums = path.with_suffix(SUMS)
        self._spans = _spans(sums) if sums.exists() else None
        self._buffer = pa.py_buffer(mapped(path))
        self._schema = self._read_schema()

    @cached_property
    def lengths(self) -> list[int]:
        return [batch.num_rows for batch in self._batches]

    def read(self, chunk: int, column: str) -> pa.Array:
        batch, at = self._batches[chunk], self._schema.get_field_index(column)
        if at < 0:
            return pa.nulls(batch.num_rows, TABLES[self.table].field(column).type)
        return batch.column(at)

    def column(self, name: str) -> pa.ChunkedArray:
        return self._table.column(name)

    def scannable(self) -> pa.Table:
        return self._table

    @cached_property
    def _table(self) -> pa.Table:
        found, wanted = pa.Table.from_batches(self._batches, self._schema), TABLES[self.table]
        stored = set(found.schema.names)
        for field in wanted:
            if field.name not in stored:
                found = found.append_column(field, pa.nulls(len(found), field.type))
        return found.select(wanted.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)

    def _read_schema(self) -> pa.Schema:
        try:
            if self._spans:
                self._message(self._spans[0])
            schema = pa.ipc.read_schema(pa.BufferReader(self._buffer))
        except _DAMAGED as error:
            if self._buffer.size:
                self._warn(f"{self.name}: its head is damaged, the usual one is taken: {error}.")
            return TABLES[self.table]
        refuse_other_version(self.name, schema.metadata)
        refuse_other_columns(self.table, schema)
        return schema.remove_metadata()

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        if self._spans is None:
            return self._unverified() if self._buffer.size else []
        return list(self._verified(self._spans))

    def _verified(self, spans: "list[_Span]") -> Iterator[pa.RecordBatch]:
        size = self._buffer.size
        cut = sum(span.end > size for span in spans)
        if cut:
            self._warn(f"{self.name} was cut off at byte {size}: the last {cut} batches are lost.")
        for number, span in enumerate(spans):
            if span.end > size or number == 0:  # the first holds the schema
                continue
            try:
                yield batch_in(self._message(span), self._schema)
            except _DAMAGED as error:
                place = f"batch {number} (byte {span.start})"
                self._warn(f"{self.name}: {place} is lost: {_said(error)}.")

    def _message(self, span: "_Span") -> pa.Buffer:
        found = self._buffer.slice(span.start, max(span.end - span.start, 0))
        if zlib.crc32(found) != span.crc:
            raise ValueError("its checksum does not match")
        return found

    def _messages(self) -> Iterator[pa.Buffer]:
        """Every message after the schema, as it lies in the stream."""
        at = pa.BufferReader(self._buffer)
        pa.ipc.read_message(at)
        while at.tell() < self._buffer.size:
            start = at.tell()
            pa.ipc.read_message(at)
            yield self._buffer.slice(start, at.tell() - start)

    def _unverified(self) -> list[pa.RecordBatch]:
        """Without its checksums a stream can be read up to the first message that is cut short."""
        self._warn(f"{self.name} has no {SUMS} file beside it, so damage in it may go unseen.")
        found: list[pa.RecordBatch] = []
        try:
            for message in self._messages():
                found.append(batch_in(message, self._schema))
        except _DAMAGED as error:
            self._warn(f"{self.name}: all after batch {len(found)} is lost: {_said(error)}.")
        return found


class ParquetPiece:
    """A file that a run left when it ended."""

    def __init__(self, path: Path, name: FileName, warn: Callable[[str], None]) -> None:
        self.name = path.name
        self.segment, self.table = name.segment, name.table
        self._warn = warn
        self._buffer = pa.py_buffer(mapped(path))
        source = pa.BufferReader(self._buffer)
        self._file = pq.ParquetFile(source, page_checksum_verification=True)
        refuse_other_version(self.name, self._file.schema_arrow.metadata)
        refuse_absurd(self._file, self._buffer.size)
        refuse_other_columns(self.table, self._file.schema_arrow)

    @cached_property
    def lengths(self) -> list[int]:
        return [self._rows(group) for group in self._groups]

    def read(self, chunk: int, column: str) -> pa.Array | pa.ChunkedArray:
        group, kind = self._groups[chunk], TABLES[self.table].field(column).type
        if column not in self._file.schema_arrow.names:
            return pa.nulls(self._rows(group), kind)
        try:
            return self._file.read_row_group(group, columns=[column]).column(0).cast(kind)
        except _DAMAGED as error:
            self._warn(f"{self.name}: `{column}` of row group {group} is lost: {_said(error)}.")
            return pa.nulls(self._rows(group), kind)

    def column(self, name: str) -> pa.ChunkedArray:
        parts = [part for i in range(len(self._groups)) for part in chunks_of(self.read(i, name))]
        return pa.chunked_array(parts, type=TABLES[self.table].field(name).type)

    def scannable(self) -> Any:
        import pyarrow.dataset as ds  # slow to load, and only for SQL

        checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        format = ds.ParquetFileFormat(default_fragment_scan_options=checked)
        fragment = format.make_fragment(self._buffer)
        return ds.FileSystemDataset([fragment], TABLES[self.table], format)

    def _rows(self, group: int) -> int:
        return int(self._file.metadata.row_group(group).num_rows)

    @cached_property
    def _groups(self) -> list[int]:
        """The row groups that can be placed: without step and rollout a row is no use."""
        names = set(self._file.schema_arrow.names)
        keys = [name for name in ("step", "rollout") if name in names]
        return [group for group in range(self._file.num_row_groups) if self._placed(group, keys)]

    def _placed(self, group: int, keys: list[str]) -> bool:
        try:
            self._file.read_row_group(group, columns=keys)
        except _DAMAGED as error:
            self._warn(f"{self.name}: row group {group} is lost: {_said(error)}.")
            return False
        return True


def compact(path: Path, name: FileName, warn: Callable[[str], None]) -> None:
    """Rewrite a finished stream as parquet, batch by batch, and remove it."""
    target, half = path.with_suffix(PARQUET), path.with_name(f".{path.stem}{PARQUET}.half")
    schema = versioned(TABLES[name.table])
    piece = StreamPiece(path, name, warn)
    options: dict[str, Any] = {
        "compression": "zstd",
        "write_page_checksum": True,
        "use_dictionary": _repeating(name.table),
    }
    try:
        with pq.ParquetWriter(half, schema, **options) as writer:
            for table in _row_groups(piece.batches(), TABLES[name.table]):
                writer.write_table(table.cast(schema), row_group_size=max(table.num_rows, 1))
        _settle(half)
        half.replace(target)
    finally:
        half.unlink(missing_ok=True)
    path.unlink()
    path.with_suffix(SUMS).unlink(missing_ok=True)


def _settle(path: Path) -> None:
    """On the disk itself: the only other copy is about to be removed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def refuse_other_version(name: str, metadata: dict[bytes, bytes] | None) -> None:
    found = (metadata or {}).get(VERSION_KEY, b"none").decode("ascii", "replace")
    if found != str(SCHEMA_VERSION):
        raise TraceError(
            f"{name} has trace schema {found}; this flatline reads schema {SCHEMA_VERSION}.\n"
            "Columns may mean something else there, so nothing is guessed.\n"
            "Read it with the flatline that recorded it; run.json names the version."
        )


def _repeating(table: str) -> bool | list[str]:
    """What is stored with a dictionary: everything, but not log-probs, of which no two are alike.

    Theirs fills its first megabyte with numbers that never come again; small row groups would have
    one such megabyte each.
    """
    if table != "tokens":
        return True
    kinds = {field.name: field.type for field in TABLES[table]}
    return [
        f"{name}.list.element" if pa.types.is_list(kind) else name
        for name, kind in kinds.items()
        if not (pa.types.is_list(kind) and pa.types.is_floating(kind.value_type))
    ]


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held, schema=schema)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held, schema=schema)


class _Span(NamedTuple):
    """Where a message lies in a stream, and its checksum."""

    start: int
    end: int
    crc: int


def _spans(path: Path) -> list[_Span]:
    """Of every message that was complete; a half-written last line does not count."""
    found = re.findall(rb"(\d{1,18}) (\d{1,18}) ([0-9a-f]{8})\n", bytes_in(path))
    return [_Span(int(start), int(end), int(crc, 16)) for start, end, crc in found]


def _said(error: Exception) -> str:
    """The words of an error on one line, without their own full stop."""
    return " ".join(str(error).split()).rstrip(" .")
