"""What is asked of an Arrow or parquet file before it is believed, or memory is taken for it.

Checksums show damage. They do not show intent: whoever makes a file can make its checksums as well.
Arrow reads a batch without looking at its offsets, and a wrong one would read memory that is not
its own; a few bytes of compressed zeros can stand for all the memory there is.
"""

import struct

import pyarrow as pa
import pyarrow.parquet as pq

from flatline.trace.schema import TABLES

ROWS_PER_BYTE = 64
"""Rows that a byte of parquet can stand for: the densest of ours has two."""
BYTES_PER_BYTE = 1000
"""Bytes that a byte of parquet can stand for."""
ALWAYS_FINE = 2**20, 2**28
"""Rows and bytes that are never too many."""
_HEADER, _COMPRESSION = 2, 3
"""Fields of Message and of RecordBatch in Arrow's own format."""


def refuse_other_columns(table: str, schema: pa.Schema) -> None:
    """Raise `ValueError` unless the columns have our types, and the first of ours is there.

    Without a column that is stored, nothing would bound the number of rows.
    """
    wanted = TABLES[table]
    if wanted.names[0] not in schema.names:
        raise ValueError(f"it has no column `{wanted.names[0]}`")
    if len(set(schema.names)) < len(schema.names):
        raise ValueError("it has two columns of one name")
    for field in schema:
        known = wanted.get_field_index(field.name)
        if known >= 0 and wanted.field(known).type != field.type:
            raise ValueError(f"its column `{field.name}` is {field.type}, not {wanted[known].type}")


def batch_in(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of a message, with every offset and text checked; `ValueError` otherwise."""
    found = pa.ipc.read_message(message)
    if found.type != "record batch" or _is_compressed(found.metadata):
        raise ValueError("it is compressed, or no batch of rows")
    batch = pa.ipc.read_record_batch(found, schema)
    batch.validate(full=True)
    return batch


def refuse_absurd(file: pq.ParquetFile, size: int) -> None:
    """Raise `ValueError` where a file of this size cannot hold what it says that it holds."""
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    rows, content = sum(g.num_rows for g in groups), sum(g.total_byte_size for g in groups)
    least_rows, least_bytes = ALWAYS_FINE
    sound = all(g.num_rows >= 0 and g.total_byte_size >= 0 for g in groups)
    if not sound or rows > least_rows + ROWS_PER_BYTE * size:
        raise ValueError(f"it says that it has {rows:,} rows, in {size:,} bytes")
    if content > least_bytes + BYTES_PER_BYTE * size:
        raise ValueError(f"it says that it unpacks to {content:,} bytes, from {size:,}")


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether the header of a record batch names a compression; ours never does."""
    data = metadata.to_pybytes()
    try:
        message = struct.unpack_from("<I", data, 0)[0]
        header = _field(data, message, _HEADER)
        if header is None:
            raise ValueError("its head is damaged")
        batch = header + struct.unpack_from("<I", data, header)[0]
        return _field(data, batch, _COMPRESSION) is not None
    except struct.error as error:
        raise ValueError("its head is damaged") from error


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer table lies; None where it is not set."""
    layout = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    if layout < 0 or place + 2 > struct.unpack_from("<H", data, layout)[0]:
        return None
    offset = struct.unpack_from("<H", data, layout + place)[0]
    return table + offset if offset else None
