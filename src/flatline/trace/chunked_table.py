"""One table of a trace, put together from pieces that are read chunk by chunk and column by column.

A piece is one file, or rows in memory. Its chunks are the batches of a stream or the row groups of
a parquet file: the least that is read at once. Nothing is read before it is asked for.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from flatline.trace.rows import indices, plain
from flatline.trace.schema import TABLES

ORDERED = {"steps": ("step",), "rollouts": ("step", "rollout"), "weights": ("step",)}
"""How rows of several files are put into one order; the other tables stay as they were written."""

_FIRST, _LAST = int(np.iinfo(np.int32).min), int(np.iinfo(np.int32).max)


class Piece(Protocol):
    """Rows of one table from one place."""

    name: str
    """Where they are from, for messages."""
    segment: int
    """Which start of the run wrote them, from 0."""

    @property
    def lengths(self) -> list[int]:
        """Rows in every chunk."""

    def read(self, chunk: int, column: str) -> pa.Array | pa.ChunkedArray:
        """One column of one chunk."""

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all chunks."""

    def scannable(self) -> Any:
        """Something that DuckDB reads column by column, so that unused ones cost nothing."""


class MemoryPiece:
    """Batches that never were in a file."""

    def __init__(self, table: str, batches: Sequence[pa.RecordBatch]) -> None:
        self.name, self.segment, self.table = "memory", 0, table
        self._batches = list(batches)
        self.lengths = [batch.num_rows for batch in self._batches]

    def read(self, chunk: int, column: str) -> pa.Array:
        return self._batches[chunk].column(column)

    def column(self, name: str) -> pa.ChunkedArray:
        return self.scannable().column(name)

    def scannable(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, schema=TABLES[self.table])


class Segments:
    """At which step each start of a run went on, for all of its tables.

    Not every table can tell: weights are looked at every so many steps, and a start that came to no
    such step has no rows of them. The rollouts can; so can the steps, where no rollout is recorded.
    """

    def __init__(self, rollouts: Sequence[Piece] = (), steps: Sequence[Piece] = ()) -> None:
        self._tables = (rollouts, steps)
        self.numbers = {piece.segment for pieces in self._tables for piece in pieces}

    @cached_property
    def begins(self) -> dict[int, int]:
        """Segment -> its first step. Segment 0 is not read: it went on from nothing."""
        begins: dict[int, int] = {}
        known = {0}
        for pieces in self._tables:
            left = [piece for piece in pieces if piece.segment not in known]
            begins |= _first_steps(map(_steps_of, left))
            known |= begins.keys()
        return begins


class Pieces:
    """All rows of one table, without the steps that a later segment replaced."""

    def __init__(
        self,
        table: str,
        pieces: Sequence[Piece],
        segments: Segments | None = None,
        *,
        steps: tuple[int, int] = (_FIRST, _LAST),
    ) -> None:
        """Of the rows, those from the first of `steps` on and below the second."""
        self.table = table
        self.schema = TABLES[table]
        self.pieces = list(pieces)
        self._segments = segments or Segments()
        self._between = steps

    def __len__(self) -> int:
        return sum(self._lengths) if self._rows is None else len(self._rows)

    def between(self, first: int, end: int) -> "Pieces":
        """The rows of some steps; a table without steps stays whole."""
        if "step" not in self.schema.names:
            return self
        return Pieces(self.table, self.pieces, self._segments, steps=(first, end))

    def column(self, name: str) -> pa.ChunkedArray:
        """One column, in the order of the table."""
        if self._rows is None:
            return self._physical(name)
        if self._between != (_FIRST, _LAST) and bool((np.diff(self._rows) > 0).all()):
            return self.gather(name, np.arange(len(self._rows)))  # a few chunks of many
        return self._physical(name).take(indices(self._rows))

    def gather(self, name: str, rows: np.ndarray) -> pa.ChunkedArray:
        """Some rows of a column, ascending; only the chunks that hold them are read."""
        rows = rows if self._rows is None else self._rows[rows]
        starts = np.cumsum([0, *self._lengths])
        ends = np.searchsorted(rows, starts)
        found = []
        # A run that was killed has a chunk for every step; most hold no row that is wanted.
        for index in np.flatnonzero(np.diff(ends)).tolist():
            piece, chunk = self._chunks[index]
            local = rows[ends[index] : ends[index + 1]] - starts[index]
            found += chunks_of(_pick(piece.read(chunk, name), local))
        return pa.chunked_array(found, type=self.schema.field(name).type)

    def to_table(self) -> pa.Table:
        columns = [self.column(name) for name in self.schema.names]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def kept(self) -> list[tuple[int, int]]:
        """For every piece, the first step of it that counts, and the first that no longer does.

        A resumed run goes on from a checkpoint: what it had done after that is not part of it. Step
        0 is a measurement before training; it says nothing about where a run goes on, and is
        replaced only by another one.
        """
        first, end = self._between
        if not self._resumed:
            return [(first, end)] * len(self.pieces)
        # Both: rows of the table itself are never kept twice, whatever the others have lost.
        begins = [*self._segments.begins.items(), *_first_steps(self._steps).items()]
        measured = [segment for segment, steps in self._steps if (steps == 0).any()]
        return [
            (
                max(first, 1 if any(later > piece.segment for later in measured) else _FIRST),
                min(
                    end, min((step for later, step in begins if later > piece.segment), default=end)
                ),
            )
            for piece in self.pieces
        ]

    @cached_property
    def _resumed(self) -> bool:
        """Whether rows may be those of a branch that was given up; nothing is read to tell."""
        found = self._segments.numbers | {piece.segment for piece in self.pieces}
        return bool(self.pieces) and "step" in self.schema.names and len(found) > 1

    @cached_property
    def _steps(self) -> list[tuple[int, np.ndarray]]:
        return [_steps_of(piece) for piece in self.pieces]

    @cached_property
    def _chunks(self) -> list[tuple[Piece, int]]:
        return [(piece, i) for piece in self.pieces for i in range(len(piece.lengths))]

    @cached_property
    def _lengths(self) -> list[int]:
        return [length for piece in self.pieces for length in piece.lengths]

    def _physical(self, name: str) -> pa.ChunkedArray:
        parts = [part for piece in self.pieces for part in piece.column(name).chunks]
        return pa.chunked_array(parts, type=self.schema.field(name).type)

    @cached_property
    def _rows(self) -> np.ndarray | None:
        """Which physical rows count, in which order; None for all of them as they are."""
        whole = not self._resumed and self._between == (_FIRST, _LAST)
        if whole and (len(self.pieces) < 2 or "step" not in self.schema.names):
            return None
        counts = [
            (steps >= first) & (steps < end)
            for (_, steps), (first, end) in zip(self._steps, self.kept(), strict=True)
        ]
        rows = np.flatnonzero(np.concatenate(counts))
        keys = [plain(self._physical(key))[rows] for key in ORDERED.get(self.table, ())]
        return rows[np.lexsort(keys[::-1])] if keys else rows


def _steps_of(piece: Piece) -> tuple[int, np.ndarray]:
    """Its segment, and the step of every row; of one that has none, a step that never comes."""
    return piece.segment, plain(piece.column("step"), _LAST)


def _first_steps(found: Iterable[tuple[int, np.ndarray]]) -> dict[int, int]:
    """Segment -> the first step of training that it has, where it has any."""
    first: dict[int, int] = {}
    for segment, steps in found:
        begin = int(steps[steps > 0].min(initial=_LAST))
        if begin < _LAST:
            first[segment] = min(begin, first.get(segment, begin))
    return first


def chunks_of(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """An array, or the arrays that it is made of."""
    return list(array.chunks) if isinstance(array, pa.ChunkedArray) else [array]


def _pick(array: pa.Array | pa.ChunkedArray, rows: np.ndarray) -> pa.Array | pa.ChunkedArray:
    """Rows in a row are a slice, which copies nothing."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return array.slice(rows[0], len(rows))
    return array.take(indices(rows))
