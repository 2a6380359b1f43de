"""Rows that have no id of their own, read from files or made by a built-in generator."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flatline.errors import DataError
from flatline.tasks.datasets import LAB, DatasetSpec, Row, parse_specs, read_rows, slice_bounds

Generate = Callable[[str, int, int], Sequence[Mapping[str, Any]]]
"""Rows of a split from a start to a stop."""


class Generator(NamedTuple):
    """What stands behind the dataset `lab` of a task."""

    sizes: Mapping[str, int]
    """How many rows each split has."""
    rows: Generate
    """Makes them."""


def numbered_rows(specs: str, *, split: str, name: str, lab: Generator) -> list[tuple[str, Row]]:
    """Every row of the specs with an id `name-split-index`; index counts from 0 in its source.

    The id says where a row lies, so it stays the same under another slice. Rows of a second source
    carry its number too, `name-split-2.index`: two files may have the same split.
    """
    sources: dict[str, int] = {}
    rows: dict[str, Row] = {}
    for spec in parse_specs(specs):
        chosen = spec.split_or(split)
        for row in _rows_of(spec, chosen, lab):
            number = sources.setdefault(row.source, len(sources) + 1)
            prefix = f"{number}." if number > 1 else ""
            id = f"{name}-{chosen}-{prefix}{row.line - 1}"
            if id in rows:
                raise DataError(
                    f"{row.place} is asked for twice by `{specs}`.\n"
                    "Its rollouts would be counted as one problem's; "
                    "give slices that do not overlap."
                )
            rows[id] = row
    return list(rows.items())


def required_text(row: Row, name: str, *, example: str) -> str:
    """A field that must hold text; `example` shows a good row."""
    value = row.data.get(name)
    if isinstance(value, str) and value.strip():
        return value
    if name not in row.data:
        seen = "is missing"
    else:
        seen = "is empty" if isinstance(value, str) else f"is not text but {value!r:.60}"
    raise DataError(f"{row.place}: `{name}` {seen}.\nA row looks like {example}; fix or drop it.")


def _rows_of(spec: DatasetSpec, split: str, lab: Generator) -> list[Row]:
    if spec.path != LAB:
        return read_rows(spec, split=split)
    if split not in lab.sizes:
        raise DataError(
            f"The built-in data of `{spec.text}` has no split {split!r}.\n"
            f"It has {', '.join(lab.sizes)}: write for example `{LAB},,validation[:100]`."
        )
    start, stop = slice_bounds(spec, lab.sizes[split])
    made = lab.rows(split, start, stop)
    return [Row(f"{LAB}[{split}]", start + i + 1, dict(data)) for i, data in enumerate(made)]
