"""CSV files with a header, among them the history that W&B exports and charts saved from its pages.

A chart saved from W&B names its columns `RUN - METRIC`, with `__MIN` and `__MAX` beside each. A
table of MLflow's metrics has a metric a row: its name, its value and its step.
"""

import csv
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.trace.importers.aliases import STEP
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.numbers import number, whole
from flatline.trace.importers.resolve import plain
from flatline.trace.importers.text import lines

_DELIMITERS = ",;\t"
_CHART = re.compile(r"(?P<run>.+) - (?P<metric>.+)")  # a name of a run may hold " - " as well
_TAG = re.compile(r"run-.+-tag-(?P<tag>.+)")
_BAND = ("__MIN", "__MAX")
_VALUE, _METRIC = "value", ("key", "metric", "metric_name", "tag")
"""Names of the two columns of a table with a metric a row."""
LARGEST = 1.79e308
"""What stands for infinite numbers in what MLflow saves."""
_RUN = ("run_id", "run_uuid", "run")


def read_csv(path: Path, run: str | None = None) -> Log:
    """The rows of a CSV file, of one run where it is a chart of several. One that does not fit its
    header is counted and left out."""
    log = Log(source="csv", path=path)
    reader = csv.reader(
        (line + "\n" for _, line in lines(path, returns=True)),
        delimiter=_delimiter(path),
        strict=False,
    )
    names: list[str] | None = None
    while (row := _next(reader, log)) is not None:
        if not any(cell.strip() for cell in row):
            continue
        if names is None:
            names = _header(path, row, run)
            log.notes.extend(_repeated(names))
        elif len(row) > len(names):
            place = f"line {reader.line_num}"
            log.bad.append(f"{place}: {len(row)} cells under {len(names)} names")
        else:
            values = {name: cell for name, cell in zip(names, row, strict=False) if name}
            log.entries.append(Entry(f"line {reader.line_num}", values))
    log.entries = _by_metric(path, names or [], log.entries)
    return log


def _by_metric(path: Path, names: list[str], entries: list[Entry]) -> list[Entry]:
    """Rows of one metric each, under its name and in the order of their steps; others as given."""
    by_plain = {plain(name): name for name in names}
    metric = next((by_plain[name] for name in _METRIC if name in by_plain), None)
    step = next((by_plain[name] for name in STEP if name in by_plain), None)
    value = by_plain.get(_VALUE)
    if metric is None or step is None or value is None:
        return entries
    run = next((by_plain[name] for name in _RUN if name in by_plain), None)
    _only_run(path, sorted({entry.values.get(run, "") for entry in entries if run}))
    nan = by_plain.get("is_nan", "")
    rows = [
        Entry(
            one.place,
            {
                step: one.values.get(step),
                one.values[metric]: _known(one.values, value, nan) if nan else one.values[value],
            },
        )
        for one in entries
    ]
    return sorted(rows, key=lambda row: whole(row.values[step]) or 0)


def _known(values: Mapping[str, Any], value: str, nan: str) -> Any:
    """A number of MLflow's, which has no NaN and no infinite ones."""
    if str(values.get(nan)).strip().lower() in ("1", "1.0", "true"):
        return "nan"
    size = abs(number(values.get(value)) or 0.0)
    return "inf" if size >= LARGEST else values.get(value)


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
    return max(_DELIMITERS, key=_first(path).count)


def _first(path: Path) -> str:
    """The first line that says anything."""
    return next((line for _, line in lines(path, returns=True) if line.strip()), "")


def runs_in(path: Path) -> list[str]:
    """The runs of a chart that was saved with several curves; none of any other file."""
    try:
        names = next(csv.reader([_first(path)], delimiter=_delimiter(path)), [])
    except csv.Error:  # `read_csv` says what is wrong with it
        return []
    found = [_CHART.fullmatch(name.strip()) for name in names[1:]]
    runs = sorted({match["run"] for match in found if match})
    return runs if len(runs) > 1 and all(found) else []


def _header(path: Path, row: list[str], run: str | None) -> list[str]:
    names = [cell.strip() for cell in row]
    if all(number(name) is not None for name in names if name):
        raise TraceError(
            f"{path} begins with numbers: {', '.join(names[:5])}.\n"
            "Without a header nothing says which column is the reward. Add a first line such as "
            "`step,reward,kl`."
        )
    return _without_run(path, _named_by_file(path, names), run)


def _named_by_file(path: Path, names: list[str]) -> list[str]:
    """A scalar that TensorBoard saved has no name but in that of its file."""
    tag = _TAG.fullmatch(path.stem)
    return [tag["tag"] if tag and name == "Value" else name for name in names]


def _repeated(names: list[str]) -> list[str]:
    return [
        f"Column {name!r} is there {count} times: the last one is read."
        for name, count in Counter(names).items()
        if name and count > 1
    ]


def _without_run(path: Path, names: list[str], run: str | None) -> list[str]:
    """Metric names of a saved chart; "" for other runs and the band around a curve."""
    found = [_CHART.fullmatch(name) for name in names[1:]]
    charted = [match for match in found if match]
    if not charted or len(charted) < len(found):
        return names
    runs = sorted({match["run"] for match in charted})
    if run not in runs:
        _only_run(path, runs)
    left_out = [m["metric"].endswith(_BAND) or m["run"] != (run or runs[0]) for m in charted]
    metrics = [m["metric"] for m in charted]
    return [names[0], *("" if out else m for out, m in zip(left_out, metrics, strict=True))]


def _only_run(path: Path, runs: list[str]) -> None:
    if len(runs) > 1:
        raise TraceError(
            f"{path} holds {len(runs)} runs: {', '.join(repr(run) for run in runs[:4])}.\n"
            "A trace is of one run. Of a chart, type FILE#RUN; else export that run alone."
        )
