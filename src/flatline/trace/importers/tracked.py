"""Runs by the name that their tracker knows them by.

wandb:ENTITY/PROJECT/RUN     through W&B's own client, which knows the login
mlflow:URI#RUN               a local store is read as it is; a server through MLflow's client
trackio:PROJECT/RUN          trackio's local database (`TRACKIO_DIR`), without trackio
"""

import os
import sqlite3
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flatline.errors import FlatlineError, TraceError
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.mlflow_store import is_file_run, read_database, read_file_run
from flatline.trace.importers.text import parsed

_EXAMPLES = {
    "wandb": "wandb:ENTITY/PROJECT/RUN",
    "mlflow": "mlflow:http://HOST:5000#RUN",
    "trackio": "trackio:PROJECT/RUN",
}
TRACKIO = "~/.cache/huggingface/trackio"
"""Where trackio keeps its databases unless `TRACKIO_DIR` says otherwise."""


def tracker_of(text: str) -> str | None:
    """The tracker that a text names; None where it is a path."""
    kind, colon, _ = text.partition(":")
    return kind if colon and kind in _EXAMPLES and not Path(text).exists() else None


def read_tracked(text: str) -> Log:
    """The history of a run, by its name."""
    kind, _, where = text.partition(":")
    read = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}[kind]
    try:
        return read(where)
    except FlatlineError:
        raise
    except Exception as error:  # a client raises whatever it likes: no network, no rights, no run
        raise TraceError(
            f"{kind} did not give the run {where!r}: {type(error).__name__}: {str(error)[:300]}.\n"
            f"Check its name and your login; a run is named as `{_EXAMPLES[kind]}`. What the run "
            "left on disk can be read without any client; see docs/a-log.md."
        ) from error


def _named(kind: str, where: str, parts: int, mark: str) -> list[str]:
    found = where.split(mark)
    if len(found) != parts or not all(found):
        raise TraceError(f"`{kind}:{where}` names no run.\nWrite `{_EXAMPLES[kind]}`.")
    return found


def _client(module: str, kind: str, instead: str) -> Any:
    if find_spec(module) is None:
        raise TraceError(
            f"`{kind}:` needs {module}, which is not installed: only it knows your login.\n"
            f"Type `pip install {module}`, or {instead}."
        )
    return import_module(module)


def _wandb(where: str) -> Log:
    _named("wandb", where, 3, "/")
    file = "give the run's own file, which is read without it: `wandb/run-*/run-*.wandb`"
    run = _client("wandb", "wandb", file).Api().run(where)
    log = Log(source="wandb", path=Path(where), config=dict(run.config))
    log.entries = [Entry(f"row {n}", dict(row)) for n, row in enumerate(run.scan_history(), 1)]
    return log


def _mlflow(where: str) -> Log:
    uri, run = _named("mlflow", where, 2, "#")
    local = Path(uri.removeprefix("sqlite:///").removeprefix("file://")).expanduser()
    if local.is_file():
        return read_database(local, run)
    if is_file_run(local / run):
        return read_file_run(local / run)
    store = "give its store, which is read without it: `mlflow.db#RUN`"
    client = _client("mlflow", "mlflow", store).tracking.MlflowClient(tracking_uri=uri)
    known = client.get_run(run).data
    steps: dict[int, dict[str, Any]] = {}
    for name in known.metrics:
        for value in client.get_metric_history(run, name):
            steps.setdefault(value.step, {"step": value.step})[name] = value.value
    log = Log(source="mlflow", path=Path(where), config=dict(known.params))
    log.entries = [Entry(f"step {step}", steps[step]) for step in sorted(steps)]
    return log


def _trackio(where: str) -> Log:
    project, run = _named("trackio", where, 2, "/")
    safe = "".join(sign for sign in project if sign.isalnum() or sign in "-_")
    path = Path(os.environ.get("TRACKIO_DIR") or TRACKIO).expanduser() / f"{safe}.db"
    if not path.is_file():
        raise TraceError(
            f"There is no {path}, where trackio would keep the project {project!r}.\n"
            "Set TRACKIO_DIR as it was in training; of a project on a Space, fetch its database "
            "first."
        )
    log = Log(source="trackio", path=path)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
        rows = "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id"
        for step, text in store.execute(rows, (run,)):
            log.entries.append(Entry(f"step {step}", {"step": step, **_numbers(text)}))
        runs = [str(name) for (name,) in store.execute("SELECT DISTINCT run_name FROM metrics")]
    if not log.entries:
        raise TraceError(
            f"{path} has no run {run!r}.\nIts runs: {', '.join(sorted(runs)[:12]) or 'none'}."
        )
    return log


def _numbers(text: str) -> dict[str, Any]:
    found = parsed(text)
    return found if isinstance(found, dict) else {}
