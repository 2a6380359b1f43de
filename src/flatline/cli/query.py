"""`flatline query`: SQL over a recorded run or a log."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli import options
from flatline.cli.diagnose import Source
from flatline.cli.output import print_json
from flatline.cli.text import shortened, visible

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS, _WIDTH = 200, 200
"""Rows, and characters of one cell, that are printed; `--json` prints everything."""


def query(
    run: Source,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One statement, in quotes.")],
    json: options.Json = False,
) -> None:
    """Answer SQL over the views steps, rollouts, tokens (one row per token) and weights.

    Read-only: the statement sees the trace, and no file and no network.
    """
    from flatline.trace.importers import open_log

    trace = open_log(run)
    found = trace.query(sql)
    print_warnings([*trace.warnings, *_renamed(found)])
    if json:
        rows = found.to_pylist(maps_as_pydicts="lossy")
        print_json([_plain(row) for row in rows], indent=None, default=str)
    else:
        _print_table(found)


def print_warnings(warnings: list[str]) -> None:
    """On stderr: what could not be read must not pass for the whole."""
    for text in warnings:
        typer.echo(f"flatline: {visible(text)}", err=True)


def _renamed(found: "pa.Table") -> list[str]:
    from flatline.trace.query import CALLED

    given = [(field.name, (field.metadata or {}).get(CALLED)) for field in found.schema]
    return [
        f"Another column is called `{old.decode()}` as well: this one is shown as `{new}`. "
        "Name it yourself with AS."
        for new, old in given
        if old is not None
    ]


def _print_table(found: "pa.Table") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in found.column_names:
        table.add_column(Text(visible(name)), justify="left", overflow="fold")
    for row in found.slice(0, _ROWS).to_pylist(maps_as_pydicts="lossy"):
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console = Console(highlight=False)
    console.print(table)
    more = found.num_rows - _ROWS
    console.print(f"{found.num_rows} rows" + (f", {_ROWS} shown; see --json" if more > 0 else ""))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else visible(shortened(str(value), limit=_WIDTH))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
