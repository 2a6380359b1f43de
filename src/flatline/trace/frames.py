"""Columns of a trace as numpy arrays: `Frame` for one table, `Groups` for what GRPO compares."""

import difflib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flatline.errors import NotRecorded
from flatline.trace.chunked_table import Pieces
from flatline.trace.rows import plain, to_numpy
from flatline.trace.schema import TABLES

NAMED = TABLES["steps"].field("metrics").type


class Coded(NamedTuple):
    """A column of text in which few texts come again and again."""

    texts: list[str | None]
    """Every text once, in the order of appearance."""
    codes: np.ndarray
    """For every row, which of them it has."""


class Frame:
    """One table. A column is read when it is asked for, and once."""

    def __init__(self, pieces: Pieces) -> None:
        self.name = pieces.table
        self._pieces = pieces
        self._arrow: dict[str, pa.ChunkedArray] = {}
        self._numpy: dict[str, np.ndarray] = {}
        self._coded: dict[str, Coded] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, column: str) -> bool:
        found = self.arrow(column)
        return bool(found.null_count < len(found))

    def __getitem__(self, column: str) -> np.ndarray:
        """Numbers as float64, NaN where null; text as objects, None where null. Read-only.

        A column without a single value raises `NotRecorded`: nothing was measured, which is not the
        same as zero.
        """
        if column not in self._numpy:
            if column not in self:
                raise NotRecorded(f"{self.name}.{column}")
            self._numpy[column] = to_numpy(self.arrow(column))
        return self._numpy[column]

    def coded(self, column: str) -> Coded:
        """A column of text by number: to compare numbers is faster than to compare texts."""
        if column not in self._coded:
            if column not in self:
                raise NotRecorded(f"{self.name}.{column}")
            found = pa.concat_arrays(self.arrow(column).chunks)
            found = found.dictionary_encode(null_encoding="encode")
            self._coded[column] = Coded(
                found.dictionary.to_pylist(), plain(found.indices).astype(np.int64)
            )
        return self._coded[column]

    def arrow(self, column: str) -> pa.ChunkedArray:
        """The column as it was recorded."""
        names = self._pieces.schema.names
        if column not in names:
            near = difflib.get_close_matches(column, names, n=3) or names
            raise KeyError(f"no column {column!r} in {self.name}; there are {', '.join(near)}")
        if column not in self._arrow:
            self._arrow[column] = self._pieces.column(column)
        return self._arrow[column]

    @property
    def table(self) -> pa.Table:
        """All columns at once."""
        return self._pieces.to_table()

    def named(self, column: str) -> dict[str, np.ndarray]:
        """Every name in a column of named numbers as an array over the rows, NaN where absent."""
        maps = pa.concat_arrays(self.arrow(column).chunks) if len(self) else pa.nulls(0, NAMED)
        rows = _rows_of_items(maps)
        names = pc.dictionary_encode(_items(maps, maps.keys))
        values = plain(_items(maps, maps.items), np.nan)
        found = np.full((len(names.dictionary), len(self)), np.nan)
        found[plain(names.indices), rows] = values
        return dict(zip(names.dictionary.to_pylist(), found, strict=True))


class Ragged:
    """Numbers of several groups, end to end: what a list of arrays is, without a loop over it."""

    def __init__(self, values: np.ndarray, sizes: np.ndarray) -> None:
        self.values = values
        """All numbers, group after group."""
        self.sizes = sizes
        """How many of them each group has."""
        self._ends = np.cumsum(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, group: int) -> np.ndarray:
        return self.values[self._ends[group] - self.sizes[group] : self._ends[group]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[group] for group in range(len(self)))

    def kept(self, which: np.ndarray) -> "Ragged":
        """Some of the groups."""
        return Ragged(self.values[np.repeat(which, self.sizes)], self.sizes[which])

    def each(self, how: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """`how` of every group, NaN of an empty one.

        It gets all groups of one size as the rows of a matrix and reduces its last axis.
        """
        found = np.full(len(self), np.nan)
        for size in np.unique(self.sizes[self.sizes > 0]).tolist():
            which = self.sizes == size
            found[which] = how(self.values[np.repeat(which, self.sizes)].reshape(-1, size))
        return found


class Groups:
    """Rollouts of one prompt in one step: the sets inside which GRPO compares rewards."""

    def __init__(self, rollouts: Frame) -> None:
        self._rollouts = rollouts
        step = rollouts["step"]
        number = _group_numbers(rollouts)
        keys = step.astype(np.int64) * (int(number.max()) + 1) + number
        _, first, index = np.unique(keys, return_index=True, return_inverse=True)
        self.index = index
        """For every rollout, which group it is in."""
        self.n = len(first)
        """How many groups."""
        self.size = np.bincount(index, minlength=self.n)
        """Rollouts in every group."""
        self.step = step[first].astype(np.int64)
        """The step of every group."""
        self._first = first

    @cached_property
    def rollout(self) -> np.ndarray:
        """The number, in its step, of the first rollout of every group."""
        return self._rollouts["rollout"][self._first].astype(np.int64)

    @cached_property
    def prompt_id(self) -> np.ndarray:
        """The prompt of every group."""
        return self._rollouts["prompt_id"][self._first]

    def each(self, column: str) -> list[np.ndarray]:
        """The values of one rollout column, group by group."""
        values = self._rollouts[column][self._order]
        return np.split(values, np.cumsum(self.size)[:-1])

    def known(self, column: str) -> Ragged:
        """The values of one rollout column that are numbers, group by group."""
        values = self._rollouts[column][self._order]
        finite = np.isfinite(values)
        sizes = np.bincount(self.index[self._order], finite, minlength=self.n).astype(np.int64)
        return Ragged(values[finite], sizes)

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.index, kind="stable")


def _group_numbers(rollouts: Frame) -> np.ndarray:
    """The recorded group, else one number for every prompt."""
    if rollouts.arrow("group").null_count == 0:
        return rollouts["group"].astype(np.int64)
    if "prompt_id" not in rollouts:
        raise NotRecorded("rollouts.group")
    prompts = [str(prompt) for prompt in rollouts["prompt_id"]]
    return np.unique(prompts, return_inverse=True)[1].astype(np.int64)


def _rows_of_items(chunk: pa.MapArray) -> np.ndarray:
    """For every item of a map column, the row that holds it."""
    lengths = np.diff(plain(chunk.offsets))
    return np.repeat(np.arange(len(chunk)), lengths)


def _items(chunk: pa.MapArray, flat: pa.Array) -> pa.Array:
    """The part of the flat items that a sliced chunk covers."""
    first, last = chunk.offsets[0].as_py(), chunk.offsets[len(chunk)].as_py()
    return flat.slice(first, last - first)
