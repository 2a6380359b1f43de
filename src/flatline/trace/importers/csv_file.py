"""CSV files with a header, among them the history that W&B exports and charts saved from its pages.

A chart saved from W&B names its columns `RUN - METRIC`, with `__MIN` and `__MAX` beside each.
"""

import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.numbers import number
from flatline.trace.importers.text import lines

_DELIMITERS = ",;\t"
_CHART = re.compile(r"(?P<run>.+) - (?P<metric>.+)")  # a name of a run may hold " - " as well
_BAND = ("__MIN", "__MAX")


def read_csv(path: Path) -> Log:
    """The rows of a CSV file. One that does not fit its header is counted and left out."""
    log = Log(source="csv", path=path)
    reader = csv.reader(
        (line + "\n" for _, line in lines(path)), delimiter=_delimiter(path), strict=False
    )
    names: list[str] | None = None
    while (row := _next(reader, log)) is not None:
        if not any(cell.strip() for cell in row):
            continue
        if names is None:
            names = _header(path, row)
            log.notes.extend(_repeated(names))
        elif len(row) > len(names):
            place = f"line {reader.line_num}"
            log.bad.append(f"{place}: {len(row)} cells under {len(names)} names")
        else:
            values = {name: cell for name, cell in zip(names, row, strict=False) if name}
            log.entries.append(Entry(f"line {reader.line_num}", values))
    return log


def _next(reader: Any, log: Log) -> list[str] | None:
    """The next row that can be split into cells; None at the end."""
    while True:
        try:
            row: list[str] = next(reader)
        except StopIteration:
            return None
        except csv.Error as error:
            log.bad.append(f"line {reader.line_num}: {error}")
        else:
            return row


def _delimiter(path: Path) -> str:
    first = next((line for _, line in lines(path) if line.strip()), "")
    return max(_DELIMITERS, key=first.count)


def _header(path: Path, row: list[str]) -> list[str]:
    names = [cell.strip() for cell in row]
    if all(number(name) is not None for name in names if name):
        raise TraceError(
            f"{path} begins with numbers: {', '.join(names[:5])}.\n"
            "Without a header nothing says which column is the reward. Add a first line such as "
            "`step,reward,kl`."
        )
    return _without_run(path, names)


def _repeated(names: list[str]) -> list[str]:
    return [
        f"Column {name!r} is there {count} times: the last one is read."
        for name, count in Counter(names).items()
        if name and count > 1
    ]


def _without_run(path: Path, names: list[str]) -> list[str]:
    """Metric names of a saved chart; "" for the band around a curve, which is left out."""
    found = [_CHART.fullmatch(name) for name in names[1:]]
    if not found or not all(found):
        return names
    runs = sorted({match["run"] for match in found if match})
    if len(runs) > 1:
        raise TraceError(
            f"{path} holds {len(runs)} runs: {', '.join(repr(run) for run in runs[:4])}.\n"
            "A trace is of one run. Export the chart with only that run shown."
        )
    metrics = [match["metric"] for match in found if match]
    return [names[0], *("" if metric.endswith(_BAND) else metric for metric in metrics)]
