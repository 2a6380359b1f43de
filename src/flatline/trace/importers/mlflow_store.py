"""MLflow's local stores, read without MLflow: the database, and the older folder of files.

    mlflow.db                     SQLite: tables `runs`, `metrics` (a row per value), `params`
    mlruns/EXPERIMENT/RUN/        `meta.yaml`, `params/NAME`, `metrics/NAME` (`TIME VALUE STEP`)

A store holds many runs. Which one is said after `#`, as in `mlflow.db#RUN_ID`; a store with a
single run needs none.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from flatline.errors import TraceError
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.numbers import number, whole
from flatline.trace.importers.text import inside, lines, opened, unreadable

SQLITE = b"SQLite format 3\x00"
DATABASE = "mlflow.db"
_META, _METRICS, _PARAMS = "meta.yaml", "metrics", "params"
_TABLES = ("runs", "metrics", "params")
_SHOWN = 12
_BOOLEANS = {"True": True, "False": False}


class Run(NamedTuple):
    """A run of a store."""

    id: str
    name: str
    values: int
    """How many numbers it logged."""


def split_run(path: Path) -> tuple[Path, str | None]:
    """`mlflow.db#RUN` as a path and a run; a path that exists is never split."""
    if path.exists() or "#" not in path.name:
        return path, None
    name, _, run = path.name.partition("#")
    return path.with_name(name), run


def is_file_run(folder: Path) -> bool:
    """Whether a folder is a run of the file store."""
    return (folder / _META).is_file() and (folder / _METRICS).is_dir()


def find_file_runs(folder: Path) -> list[Path]:
    """Runs of the file store below an experiment, `mlruns`, or the folder that holds it."""
    patterns = (f"*/{_META}", f"*/*/{_META}", f"mlruns/*/*/{_META}")
    metas = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(inside(folder, (meta.parent for meta in metas if is_file_run(meta.parent))))


def read_database(path: Path, run: str | None) -> Log:
    """The numbers that one run of a database logged."""
    log = Log(source="mlflow", path=path)
    _refuse_odd_companions(path)
    try:
        # Read-only, and only real tables: a view could be a query that never ends.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
            missing = set(_TABLES) - {name for (name,) in store.execute(tables)}
            if missing:
                raise _no_store(path, missing)
            chosen = _chosen(path, list(_runs(store)), run)
            _read_run(store, chosen, log)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter quoting a damaged schema
        raise TraceError(
            f"{path} cannot be read as an SQLite database: {error}.\n"
            "Give MLflow's own `mlflow.db`, or export the run's metrics as CSV."
        ) from error
    return log


def _refuse_odd_companions(path: Path) -> None:
    """SQLite opens what lies beside a database under these names, and would wait for a pipe."""
    for end in ("-journal", "-wal", "-shm"):
        companion = Path(f"{path.resolve()}{end}")
        try:
            opened(companion).close()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(companion, error) from error


def read_file_run(folder: Path) -> Log:
    """The numbers that a run of the file store logged."""
    log = Log(source="mlflow", path=folder)
    steps: dict[int, dict[str, Any]] = {}
    metrics = folder / _METRICS
    for file in _files(folder, metrics.rglob("*")):
        name = file.relative_to(metrics).as_posix()
        for at, line in lines(file):
            _take(log, steps, name, line.split(), f"{name} line {at}")
    log.entries = [Entry(f"step {step}", values) for step, values in sorted(steps.items())]
    params = folder / _PARAMS
    for file in _files(folder, params.glob("*")):
        text = "\n".join(line for _, line in lines(file))
        log.config[file.name] = _typed(text)
    return log


def _files(folder: Path, found: Iterable[Path]) -> list[Path]:
    return inside(folder, sorted(path for path in found if not path.is_dir()))


def _take(
    log: Log, steps: dict[int, dict[str, Any]], name: str, parts: list[str], place: str
) -> None:
    value = number(parts[1]) if len(parts) > 1 else None
    step = whole(parts[2]) if len(parts) > 2 else 0
    if value is None or step is None:
        log.bad.append(f"{place}: not a time, a value and a step: {' '.join(parts)[:60]!r}")
    else:
        steps.setdefault(step, {"step": step})[name] = value


def _runs(store: sqlite3.Connection) -> Iterator[Run]:
    counted = (
        "SELECT runs.run_uuid, runs.name, count(metrics.key) FROM runs "
        "LEFT JOIN metrics ON metrics.run_uuid = runs.run_uuid "
        "GROUP BY runs.run_uuid ORDER BY runs.start_time"
    )
    for run, name, values in store.execute(counted):
        yield Run(str(run), str(name or ""), int(values))


def _chosen(path: Path, runs: list[Run], wanted: str | None) -> str:
    if wanted is not None:
        found = [run.id for run in runs if wanted in (run.id, run.name)]
    else:
        found = [run.id for run in runs if run.values]
    if len(found) == 1:
        return found[0]
    shown = [f"  {path.name}#{run.id}  {run.name}, {run.values} values" for run in runs[-_SHOWN:]]
    seen = f"{len(found)} runs" if wanted is None else f"{len(found)} runs called {wanted!r}"
    listed = "\n".join(shown) or "  none"
    raise TraceError(
        f"{path} holds {seen} with metrics, and a trace is of one. The latest runs:\n{listed}\n"
        f"Name one: `flatline diagnose '{path}#RUN'`."
    )


def _read_run(store: sqlite3.Connection, run: str, log: Log) -> None:
    steps: dict[int, dict[str, Any]] = {}
    asked = "SELECT key, value, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp"
    for name, value, step, missing in store.execute(asked, (run,)):
        at = whole(step)
        if at is None:
            log.bad.append(f"{str(name)[:60]!r}: `step` is no step: {step!r}")
        else:
            found = float("nan") if missing else value
            steps.setdefault(at, {"step": at})[str(name)] = found
    log.entries = [Entry(f"step {step}", values) for step, values in sorted(steps.items())]
    asked = "SELECT key, value FROM params WHERE run_uuid = ?"
    log.config = {str(name): _typed(str(value)) for name, value in store.execute(asked, (run,))}


def _typed(text: str) -> Any:
    """MLflow keeps parameters as text."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    found = number(text)
    if found is None:
        return text
    return int(found) if found.is_integer() and "." not in text and "e" not in text else found


def _no_store(path: Path, missing: set[str]) -> TraceError:
    return TraceError(
        f"{path} is an SQLite database without MLflow's tables {', '.join(sorted(missing))}.\n"
        "Of databases only MLflow's can be read: `mlflow.db`, or the file behind the tracking URI "
        "`sqlite:///FILE`."
    )
