"""A folder of several runs or logs: which ones."""

from pathlib import Path

from flatline.trace.files import table_files
from flatline.trace.folder import RUN_FILE
from flatline.trace.importers.csv_file import runs_in
from flatline.trace.importers.dumps import find_dumps
from flatline.trace.importers.json_file import find_state
from flatline.trace.importers.mlflow_store import is_file_run
from flatline.trace.importers.printed import prints_rows
from flatline.trace.importers.tensorboard import NAME, find_events
from flatline.trace.importers.tracked import tracker_of
from flatline.trace.importers.wandb_file import find_wandb

_LOGS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".wandb")
_PRINTED = (".log", ".txt", ".out")
"""What a trainer printed has these names, and so has much else."""


def logs_in(given: str) -> list[str]:
    """The runs and logs that lie directly in a folder, or in a chart of several; the path itself
    where it is one of them."""
    folder = Path(given).expanduser()
    if not tracker_of(given) and folder.is_file() and folder.suffix.lower() in (".csv", ".tsv"):
        return [f"{given}#{run}" for run in runs_in(folder)] or [given]
    if tracker_of(given) or not folder.is_dir() or _is_recorded(folder):
        return [given]
    if find_state(folder) or is_file_run(folder) or _is_one_dump(folder):
        return [given]
    found = [path for path in sorted(folder.iterdir()) if _is_run(path)]
    return [str(path) for path in found] if len(found) > 1 else [given]


def _is_recorded(folder: Path) -> bool:
    """Whether flatline recorded it, also where its `run.json` was removed since."""
    return (folder / RUN_FILE).is_file() or bool(table_files(folder))


def _is_one_dump(folder: Path) -> bool:
    """Whether all its logs are the rollouts of one run, a file for each step."""
    logs = {path for path in folder.iterdir() if path.suffix.lower() in _LOGS}
    dumps = find_dumps(folder)
    return (
        bool(dumps) and len({dump.run for dump in dumps}) == 1 and logs <= {d.path for d in dumps}
    )


def _is_run(path: Path) -> bool:
    if path.is_file():
        suffix = path.suffix.lower()
        printed = suffix in _PRINTED and prints_rows(path)
        return suffix in _LOGS or NAME in path.name or printed
    if not path.is_dir() or path.name.startswith("."):
        return False
    looks = (_is_recorded(path), find_state(path), is_file_run(path))
    return any(looks) or len(find_wandb(path)) == 1 or bool(find_events(path))
