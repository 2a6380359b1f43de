"""The files of a table: Arrow streams while a run writes, parquet once it has ended.

A stream grows by whole messages. Beside it a `.crc` file (`checksums.py`) gains a line for each,
right after the message itself is written: what has a line was complete, and what no longer matches
its line is damaged. Arrow alone would read a flipped bit as data. The stream stays one that any
Arrow reader takes. Parquet has checksums of its own, but not of its footer and of the heads of its
pages: its `.parquet.crc` has a line for every column of a row group, and one for the footer.

What has no line is read and reported: nobody can vouch for it.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from flatline.errors import TraceError
from flatline.files import mapped, write_exactly
from flatline.trace.checksums import SUMS, Sums, line_of, read_sums
from flatline.trace.chunked_table import chunks_of
from flatline.trace.schema import SCHEMA_VERSION, TABLES
from flatline.trace.trusted import batch_in, refuse_absurd, refuse_other_columns

STREAM, PARQUET = ".arrow", ".parquet"
VERSION_KEY, SUMS_KEY = b"flatline_schema", b"flatline_sums"
"""In the metadata of a file: its schema, and that checksums of the whole lie beside it."""
_NAME = re.compile(r"([a-z]+)\.r(\d+)\.(\d+)\.(?:arrow|parquet|crc|parquet\.crc)")
_DAMAGED = (OSError, pa.ArrowException, ValueError, EOFError)
ROW_GROUP_BYTES = 8 * 2**20
"""What compaction holds in memory at once, and the least that is later read of a column: one
rollout of a large run should not cost the tokens of a hundred thousand others."""
HELD_BYTES = 2**16
"""What a stream holds back, to hand over messages and their lines in one go: a process that is
killed in between leaves messages without a line."""
LINE_WAIT = 0.2
"""Seconds that a reader waits for the line of what it saw in a stream: a run that writes is about
to write it."""


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


def table_files(path: Path) -> list[FileName]:
    """Every table file, parquet or stream, once; in order of segment and rank."""
    found = {FileName.parse(entry.name) for entry in path.iterdir()}
    return sorted(
        (name for name in found if name), key=lambda name: (name.table, name.segment, name.rank)
    )


def versioned(schema: pa.Schema) -> pa.Schema:
    return schema.with_metadata({VERSION_KEY: str(SCHEMA_VERSION)})


class StreamFile:
    """A stream that is being written."""

    def __init__(self, path: Path, table: str) -> None:
        self.path, self.table = path, table
        self._end = self._held = 0
        self._messages: list[pa.Buffer] = []
        # Never a stream without its checksums; and none is written over, not even half of one.
        self._sums = path.with_suffix(SUMS).open("x", encoding="ascii")
        self._file = path.open("xb")
        self._append(versioned(TABLES[table]).serialize())
        self.flush()

    def append(self, batch: pa.RecordBatch) -> None:
        self._append(batch.serialize())

    def flush(self) -> None:
        """Hand everything to the system: from here on a killed process loses none of it."""
        if not self._messages:
            return
        lines = []
        for message in self._messages:
            lines.append(line_of(self._end, message))
            self._end += len(message)
        self._file.writelines(self._messages)
        self._file.flush()
        self._sums.writelines(lines)
        self._sums.flush()
        self._messages, self._held = [], 0

    def close(self) -> None:
        self._file.close()
        self._sums.close()

    def _append(self, message: pa.Buffer) -> None:
        self._messages.append(message)
        self._held += len(message)
        if self._held >= HELD_BYTES:
            self.flush()


class StreamPiece:
    """A stream that is read; it may still grow, and may be damaged."""

    def __init__(self, path: Path, name: FileName, warn: Callable[[str], None]) -> None:
        self.name, self.segment, self.table = path.name, name.segment, name.table
        self._warn = warn
        # Before the stream, which may grow in between: what has a line must then be there.
        before = _sums_beside(path.with_suffix(SUMS), warn)
        self._buffer = pa.py_buffer(mapped(path))
        size = self._buffer.size
        if before is None and size:
            warn(f"{self.name} has no {SUMS} file beside it, so damage in it may go unseen.")
        known = _caught_up(path.with_suffix(SUMS), before, size)
        self._spans = [span for span in known.spans if span.end <= size]
        cut = sum(span.end > size for span in before.spans) if before else 0
        if cut:
            warn(f"{self.name} was cut off at byte {size}: the last {cut} batches are lost.")
        # What goes on past the end was cut off, or has been written since.
        self._known_to = size if known.end > size else known.end
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
            if self._spans and self._spans[0].start == 0:
                self._spans[0].of(self._buffer)
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
        return list(self._read_batches())

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        at = 0
        for number, span in enumerate(self._spans):
            yield from self._unvouched(at, span.start)
            at = span.end
            if span.start == 0:  # holds the schema
                continue
            try:
                yield batch_in(span.of(self._buffer), self._schema)
            except _DAMAGED as error:
                place = f"batch {number} (byte {span.start})"
                self._warn(f"{self.name}: {place} is lost: {_said(error)}.")
        if self._known_to < self._buffer.size:
            yield from self._unvouched(at, self._buffer.size)

    def _unvouched(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The batches between two bytes, for which no checksum is known."""
        if start == end:
            return
        found, at, lost = 0, pa.BufferReader(self._buffer.slice(start, end - start)), ""
        try:
            while at.tell() < end - start:
                begin = at.tell()
                kind = pa.ipc.read_message(at).type
                if kind != "schema" or start + begin > 0:
                    message = self._buffer.slice(start + begin, at.tell() - begin)
                    yield batch_in(message, self._schema)
                    found += 1
        except _DAMAGED as error:
            lost = f" What follows them is lost: {_said(error)}."
        self._warn(
            f"{self.name} has no checksum for its bytes {start} to {end}: lines of the {SUMS} file "
            "are lost, or the run was killed while it wrote. Damage in them would go unseen; "
            f"batches read: {found}.{lost}"
        )


class ParquetPiece:
    """A file that a run left when it ended."""

    def __init__(self, path: Path, name: FileName, warn: Callable[[str], None]) -> None:
        self.name = path.name
        self.segment, self.table = name.segment, name.table
        self._warn = warn
        self._buffer = pa.py_buffer(mapped(path))
        size = self._buffer.size
        sums = _sums_beside(path.with_name(path.name + SUMS), warn)
        self._spans = {span.start: span for span in sums.spans} if sums else {}
        if sums and sums.end > size:
            raise ValueError(f"it was cut off at byte {size}")
        if sums and sums.end == size:  # the footer, which says what is where
            sums.spans[-1].of(self._buffer)
        whole = sums is not None and sums.covers(size)
        if sums and not whole:
            warn(f"{path.name}{SUMS} lacks lines, so damage in {path.name} may go unseen.")
        # A page has a checksum of its own, which is needed where ours is not there.
        self._file = pq.ParquetFile(
            pa.BufferReader(self._buffer), page_checksum_verification=not whole
        )
        metadata = self._file.schema_arrow.metadata
        refuse_other_version(self.name, metadata)
        if sums is None and SUMS_KEY in (metadata or {}):
            warn(f"{self.name} has no {SUMS} file beside it, so damage in it may go unseen.")
        refuse_absurd(self._file, size)
        refuse_other_columns(self.table, self._file.schema_arrow)

    @cached_property
    def lengths(self) -> list[int]:
        return [self._rows(group) for group in self._groups]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._file.schema_arrow.names)

    def read(self, chunk: int, column: str) -> pa.Array | pa.ChunkedArray:
        group, kind = self._groups[chunk], TABLES[self.table].field(column).type
        if column not in self._names:
            return pa.nulls(self._rows(group), kind)
        try:
            return self._read(group, column).cast(kind)
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

    def _read(self, group: int, column: str) -> pa.ChunkedArray:
        """A column of a row group; `ValueError` where it is not what was written."""
        for chunk in self._chunks[group].get(column, ()) if self._spans else ():
            span = self._spans.get(chunk.start)
            if span is not None:
                span.of(self._buffer)
        # One column is read faster by the thread that asks for it.
        found = self._file.read_row_group(group, columns=[column], use_threads=False).column(0)
        if len(found) != self._rows(group):
            raise ValueError(f"it has {len(found)} values for {self._rows(group)} rows")
        return found

    @cached_property
    def _chunks(self) -> list[dict[str, list[range]]]:
        return _chunks(self._file.metadata)

    def _rows(self, group: int) -> int:
        return int(self._file.metadata.row_group(group).num_rows)

    @cached_property
    def _groups(self) -> list[int]:
        """The row groups that can be placed: without step and rollout a row is no use."""
        keys: list[str] = [name for name in ("step", "rollout") if name in self._names]
        return [group for group in range(self._file.num_row_groups) if self._placed(group, keys)]

    def _placed(self, group: int, keys: list[str]) -> bool:
        try:
            for key in keys:
                self._read(group, key)
        except _DAMAGED as error:
            self._warn(f"{self.name}: row group {group} is lost: {_said(error)}.")
            return False
        return True


def compact(path: Path, name: FileName, warn: Callable[[str], None]) -> None:
    """Rewrite a finished stream as parquet, batch by batch, and remove it."""
    target, half = path.with_suffix(PARQUET), path.with_name(f".{path.stem}{PARQUET}.half")
    schema = versioned(TABLES[name.table]).with_metadata(
        {VERSION_KEY: str(SCHEMA_VERSION), SUMS_KEY: "1"}
    )
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
        write_exactly(target.with_name(target.name + SUMS), _parquet_lines(half))
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


def _sums_beside(path: Path, warn: Callable[[str], None]) -> Sums | None:
    try:
        sums = read_sums(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn(f"{path.name} cannot be read: {_said(error)}.")
        return None
    if sums.bad:
        warn(f"{path.name} is damaged ({', '.join(sums.bad)}).")
    return sums


def _caught_up(path: Path, sums: Sums | None, size: int) -> Sums:
    """What the lines say once they are about all of a stream of this size, if they ever are."""
    if sums is None:
        return Sums(spans=[], bad=())
    until = time.monotonic() + LINE_WAIT
    while sums.end < size and time.monotonic() < until:
        time.sleep(0.01)
        sums = read_sums(path)
    return sums


def _parquet_lines(path: Path) -> Iterator[str]:
    """For every column of every row group, and for what lies between, before and after them."""
    buffer = pa.memory_map(str(path)).read_buffer()
    groups = _chunks(pq.read_metadata(path))
    inside = [chunk for group in groups for chunks in group.values() for chunk in chunks]
    places = sorted({0, buffer.size, *(at for one in inside for at in (one.start, one.stop))})
    for start, end in pairwise(places):
        yield line_of(start, buffer.slice(start, end - start))


def _chunks(metadata: pq.FileMetaData) -> list[dict[str, list[range]]]:
    """For every row group, where the bytes of its columns are; a list has one place, a map two."""
    found: list[dict[str, list[range]]] = []
    for group in range(metadata.num_row_groups):
        places: dict[str, list[range]] = {}
        columns = metadata.row_group(group)
        for number in range(metadata.num_columns):
            chunk = columns.column(number)
            first = chunk.data_page_offset
            start = min(chunk.dictionary_page_offset or first, first)
            name = chunk.path_in_schema.split(".")[0]
            places.setdefault(name, []).append(range(start, start + chunk.total_compressed_size))
        found.append(places)
    return found


def _said(error: Exception) -> str:
    """The words of an error on one line, without their own full stop."""
    return " ".join(str(error).split()).rstrip(" .")
