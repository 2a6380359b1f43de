"""SQL over a trace, answered by DuckDB from the files where they lie.

The text may come from anyone, so the database sees the trace and nothing else: no file, no network,
no Python variable, no extension, and nothing that it changes outlives the question.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from flatline.errors import TraceError
from flatline.trace.chunked_table import Pieces
from flatline.trace.schema import TABLES

VIEWS = ("steps", "rollouts", "tokens", "weights")
_KEYS = ("step", "rank", "rollout")
_OTHER_LENGTH = ("prompt_ids", "prompt_attended", "sampled_prompt_ids", "sampled_ids")
_PER_TOKEN = tuple(name for name in TABLES["tokens"].names if name not in (*_KEYS, *_OTHER_LENGTH))
TOKEN_COLUMNS = (*_KEYS, "position", *("id" if name == "ids" else name for name in _PER_TOKEN))
"""Of the view `tokens`, which has one row per completion token."""
CALLED = b"called"
"""Where a column that had to be renamed keeps the name that the statement gave it."""
_HELD = {
    *("boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "float", "double"),
    *("utinyint", "usmallint", "uinteger", "ubigint", "decimal", "varchar", "null"),
}
"""Types whose every value Arrow and Python can hold. A date may be infinite in DuckDB, a time has a
zone, `uhugeint` ends up as -1: of every other type the answer has DuckDB's own text."""


def query(tables: Mapping[str, Pieces], sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
    """The answer to one SQL statement over the views; `parameters` stand where it says `?`."""
    with duckdb.connect(":memory:") as connection:
        for name in _mentioned(sql) or VIEWS:
            _add_view(connection, name, tables[name])
        for setting in (
            "enable_external_access = false",
            "python_enable_replacements = false",
            "lock_configuration = true",
        ):
            connection.execute(f"SET {setting}")
        try:
            found = connection.sql(sql, params=list(parameters) or None)
            return pa.table({}) if found is None else _answer(found)
        except (duckdb.Error, pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            raise TraceError(f"{error}\n{_what_there_is()}") from error


def _answer(found: duckdb.DuckDBPyRelation) -> pa.Table:
    """The rows, under names of which no two are equal: else one would hide the other."""
    names, kinds = found.columns, found.types
    if not all(map(_is_held, kinds)):
        columns = (
            f"#{at}" if _is_held(kind) else f"CAST(#{at} AS VARCHAR)"
            for at, kind in enumerate(kinds, start=1)
        )
        found = found.project(", ".join(columns))
    table = found.to_arrow_table()
    fields: list[pa.Field] = []
    taken = set(names)
    for name, kind in zip(names, table.schema.types, strict=True):
        known = {field.name for field in fields}
        free = (new for n in count(1) if (new := f"{name}_{n}") not in known | taken)
        fields.append(
            pa.field(next(free), kind, metadata={CALLED: name.encode()})
            if name in known
            else pa.field(name, kind)
        )
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def _is_held(kind: DuckDBPyType) -> bool:
    if kind.id not in ("list", "array", "struct", "map"):
        return kind.id.strip('"') in _HELD
    inner = [part for _, part in kind.children if isinstance(part, DuckDBPyType)]
    # The key of a JSON object is text.
    return all(map(_is_held, inner)) and (kind.id != "map" or inner[0].id == "varchar")


def _mentioned(sql: str) -> list[str]:
    """Views that the statement names: a table that it does not need is not even opened."""
    return [name for name in VIEWS if name in sql.lower()]


def _add_view(connection: duckdb.DuckDBPyConnection, name: str, pieces: Pieces) -> None:
    parts = []
    columns = ", ".join(_quoted(column) for column in TABLES[name].names)
    for number, (first, end) in enumerate(pieces.kept()):
        source = f"_{name}_{number}"
        connection.register(source, pieces.pieces[number].scannable())
        parts.append(f"SELECT {columns} FROM {source} WHERE step >= {first} AND step < {end}")
    if not parts:
        connection.register(f"_{name}_none", TABLES[name].empty_table())
        parts.append(f"SELECT * FROM _{name}_none")
    rows = " UNION ALL ".join(parts)
    connection.execute(f"CREATE VIEW {name} AS {_by_token(rows) if name == 'tokens' else rows}")


def _by_token(rows: str) -> str:
    """Only positions are unnested, so that lists which are not asked for are not read."""
    keys = ", ".join(_KEYS)
    values = ", ".join(
        f"{name}[position + 1] AS {_quoted('id' if name == 'ids' else name)}" for name in _PER_TOKEN
    )
    numbered = f"SELECT *, unnest(range(len(ids))) AS position FROM ({rows})"
    return f"SELECT {keys}, position, {values} FROM ({numbered})"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _what_there_is() -> str:
    columns = {name: TABLES[name].names for name in VIEWS} | {"tokens": list(TOKEN_COLUMNS)}
    lines = [f"  {name}({', '.join(found)})" for name, found in columns.items()]
    return "\n".join(["There are these views, and no other table or file:", *lines])
