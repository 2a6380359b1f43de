"""Rows as plain dicts become Arrow batches, and Arrow columns become numpy arrays."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flatline.errors import TraceError
from flatline.text import encodable
from flatline.trace.schema import TABLES

Row = Mapping[str, Any]
"""Column name to value; a missing key is null."""


UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def to_batch(
    table: str, rows: Sequence[Row], *, on_unfit: Callable[[TraceError], None] | None = None
) -> pa.RecordBatch:
    """The rows of one table, with every column of its schema.

    Values that do not fit are an error; with `on_unfit` they are reported there and become null.
    """
    columns = []
    given: set[str] = set().union(*rows)
    for field in TABLES[table]:
        if field.name not in given:
            columns.append(pa.nulls(len(rows), field.type))
            continue
        try:
            columns.append(_column(table, field, [row.get(field.name) for row in rows]))
        except TraceError as error:
            if on_unfit is None:
                raise
            on_unfit(error)
            columns.append(pa.nulls(len(rows), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=TABLES[table])


def refuse_unknown(table: str, names: Iterable[str]) -> None:
    """A misspelt column would be lost without a word."""
    known = TABLES[table].names
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or known
            raise TraceError(
                f"The table `{table}` has no column `{name}`, so its values would be lost.\n"
                f"Did you mean {', '.join(f'`{other}`' for other in near)}?"
            )


def indices(rows: np.ndarray) -> pa.Array:
    """Row numbers for Arrow. `pa.array` would do the same, and load pandas to look for a Series."""
    whole = np.ascontiguousarray(rows, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


def plain(found: pa.Array | pa.ChunkedArray, fill: float = 0) -> np.ndarray:
    """Numbers or truth values of Arrow for numpy, with `fill` for null.

    `fill_null` and `np.asarray` would do the same. Where pandas is installed both load it first,
    which takes a third of a second.
    """
    if not len(found):
        return np.zeros(0, dtype=found.type.to_pandas_dtype())
    if pa.types.is_boolean(found.type):
        return plain(found.cast(pa.uint8()), fill).astype(bool)
    whole = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    data = [None, whole.buffers()[1]]
    bare = pa.Array.from_buffers(whole.type, len(whole), data, offset=whole.offset)
    values = np.from_dlpack(bare)
    if not whole.null_count:
        return values
    return np.where(plain(whole.is_valid()), values, np.array(fill, dtype=values.dtype))


def to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers as float64 with NaN for null; anything else as objects with None for null."""
    kind = column.type
    values: np.ndarray
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = plain(column.cast(pa.float64(), safe=False), np.nan)
    else:
        values = np.empty(len(column), dtype=object)
        values[:] = column.to_pylist(
            **({"maps_as_pydicts": "lossy"} if pa.types.is_map(kind) else {})
        )
    # Columns are cached and shared, so one reader must not change them for the next.
    values.flags.writeable = False
    return values


def _column(table: str, field: pa.Field, values: list[Any]) -> pa.Array:
    quick = _quick_column(field.type, values)
    if quick is not None:
        return quick
    try:
        return pa.array(values, type=field.type)
    except (UnicodeEncodeError, *UNFIT) as error:
        repaired = [_repaired(value, field.type) for value in values]
        try:
            return pa.array(repaired, type=field.type)
        except UNFIT:
            raise TraceError(
                f"The values of `{table}.{field.name}` do not fit its type, {field.type}: {error}"
            ) from error


def _quick_column(kind: pa.DataType, values: list[Any]) -> pa.Array | None:
    """What `pa.array` makes of plain values, without loading pandas; None for others.

    A long log is read in half the time. Text goes the other way.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds and values:
        return pa.nulls(len(values), kind)
    if pa.types.is_float64(kind) and kinds == {float}:
        return _numbers(kind, values)
    if pa.types.is_int32(kind) and kinds == {int}:
        known = [value for value in values if value is not None]
        fit = min(known) >= -(2**31) and max(known) < 2**31
        return _numbers(kind, values) if fit else None
    if pa.types.is_list(kind) and kinds == {np.ndarray}:
        return _lists(kind, values)
    return _named_numbers(kind, values) if pa.types.is_map(kind) and kinds == {dict} else None


def _numbers(kind: pa.DataType, values: list[Any]) -> pa.Array:
    filled = [0 if value is None else value for value in values] if None in values else values
    data = pa.py_buffer(np.array(filled, dtype=kind.to_pandas_dtype()))
    return pa.Array.from_buffers(kind, len(values), [_valid(values), data])


def _lists(kind: pa.DataType, values: list[np.ndarray | None]) -> pa.Array | None:
    """End to end: Arrow would look at the ids of a batch, which has wider ones, one by one."""
    arrays = [value for value in values if value is not None]
    if len({(array.dtype, array.ndim) for array in arrays}) > 1 or arrays[0].ndim != 1:
        return None
    given = np.concatenate(arrays)
    flat = given.astype(kind.value_type.to_pandas_dtype(), copy=False)
    whole = given.dtype.kind in "iu" and flat.dtype.kind in "iu"
    if flat is not given and not (whole and np.array_equal(flat, given)):
        return None
    offsets = _offsets(0 if value is None else len(value) for value in values)
    numbers = pa.Array.from_buffers(kind.value_type, len(flat), [None, pa.py_buffer(flat)])
    return pa.Array.from_buffers(kind, len(values), [_valid(values), offsets], children=[numbers])


def _valid(values: list[Any]) -> pa.Buffer | None:
    """Which of them are not null, as Arrow notes it."""
    known = [value is not None for value in values]
    return None if all(known) else pa.py_buffer(np.packbits(known, bitorder="little"))


def _named_numbers(kind: pa.DataType, values: list[Any]) -> pa.Array | None:
    if None in values:
        return None
    names = [name for row in values for name in row]
    numbers = [number for row in values for number in row.values()]
    if set(map(type, names)) != {str} or set(map(type, numbers)) != {float}:
        return None
    try:
        bytes_of = {name: len(name.encode()) for name in set(names)}
    except UnicodeEncodeError:
        return None
    text = [_offsets(map(bytes_of.__getitem__, names)), pa.py_buffer("".join(names).encode())]
    keys = pa.Array.from_buffers(pa.string(), len(names), [None, *text])
    rows = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, _offsets(map(len, values))])
    return pa.MapArray.from_arrays(rows, keys, _numbers(pa.float64(), numbers))


def _offsets(lengths: Iterable[int]) -> pa.Buffer:
    return pa.py_buffer(np.cumsum([0, *lengths], dtype=np.int32))


def _repaired(value: Any, kind: pa.DataType) -> Any:
    """What a column can hold of a value that Arrow does not take as it is."""
    if isinstance(value, Mapping):
        return {encodable(str(key)): number for key, number in value.items()}
    if pa.types.is_string(kind) and value is not None:
        return encodable(str(value))
    if pa.types.is_integer(kind) and isinstance(value, bool | np.bool_):
        return int(value)
    if pa.types.is_integer(kind) and isinstance(value, float | np.floating):
        return value if math.isfinite(value) else None
    return value
