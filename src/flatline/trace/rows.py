"""Rows as plain dicts become Arrow batches, and Arrow columns become numpy arrays."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flatline.errors import TraceError
from flatline.trace.schema import TABLES

Row = Mapping[str, Any]
"""Column name to value; a missing key is null."""


UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def to_batch(
    table: str, rows: Sequence[Row], *, on_unfit: Callable[[TraceError], None] | None = None
) -> pa.RecordBatch:
    """The rows of one table, with every column of its schema.

    Values that do not fit are an error; with `on_unfit` they are told there and become null.
    """
    columns = []
    for field in TABLES[table]:
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


def to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers as float64 with NaN for null; anything else as objects with None for null."""
    kind = column.type
    values: np.ndarray
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = np.asarray(column.cast(pa.float64(), safe=False), dtype=np.float64)
    else:
        values = np.empty(len(column), dtype=object)
        values[:] = column.to_pylist(
            **({"maps_as_pydicts": "lossy"} if pa.types.is_map(kind) else {})
        )
    # Columns are cached and shared, so one reader must not change them for the next.
    values.flags.writeable = False
    return values


def _column(table: str, field: pa.Field, values: list[Any]) -> pa.Array:
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


def _repaired(value: Any, kind: pa.DataType) -> Any:
    """What a column can hold of a value that Arrow does not take as it is."""
    if isinstance(value, Mapping):
        return {_encodable(key): number for key, number in value.items()}
    if pa.types.is_string(kind) and value is not None:
        return _encodable(value)
    if pa.types.is_integer(kind) and isinstance(value, bool | np.bool_):
        return int(value)
    if pa.types.is_integer(kind) and isinstance(value, float | np.floating):
        return value if math.isfinite(value) else None
    return value


def _encodable(value: Any) -> str:
    """Text of a model may hold half of a surrogate pair, which UTF-8 cannot."""
    return str(value).encode("utf-8", "backslashreplace").decode()
