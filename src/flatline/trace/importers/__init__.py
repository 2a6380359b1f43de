"""Other people's logs as traces: `open_log(path)` finds out what a path is.

    a run directory                 flatline's own recording
    trainer_state.json              TRL and transformers; also a checkpoint or output folder
    *.json                          a list of rows, bare or under a key
    *.jsonl, *.csv                  one row per step; verl's metrics log, exported W&B history
    *.wandb                         W&B's run file, online or offline; also its folder
    events.out.tfevents.*           TensorBoard; also its folder
    N.jsonl, results.jsonl          rollouts of verl and verifiers; also a folder of the former

A trace has only what its source has: a missing column is `NotRecorded`, never a guess.
`run["notes"]` tells the choices that were made, `run["aliases"]` which name fills which column, and
`run["unrecognised"]` the names that no alias knows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.trace.folder import RUN_FILE
from flatline.trace.importers.csv_file import read_csv
from flatline.trace.importers.json_file import find_state, read_json
from flatline.trace.importers.log import Entry, Log, nothing_in
from flatline.trace.importers.rollouts import KINDS, as_rollouts, rollout_rows, summed_up
from flatline.trace.importers.settings import settings_of
from flatline.trace.importers.steps import step_table
from flatline.trace.importers.tensorboard import NAME, find_events, read_events
from flatline.trace.importers.text import head, lines, read_jsonl
from flatline.trace.importers.wandb_file import MAGIC, find_wandb, read_wandb
from flatline.trace.reader import Trace

__all__ = ["open_log"]

_READABLE = (
    "flatline reads its own run directories, trainer_state.json, .json, .jsonl, .csv, W&B .wandb "
    "files, TensorBoard event files, rollouts of verl and verifiers; see docs/importing.md."
)
_UNKNOWN = ("created", "versions", "commit", "fault", "hardware")
"""What `run.json` of a recorded run says, and no log does."""
_FILES = ("metrics.jsonl", "results.jsonl", "wandb-history.jsonl")
"""Names under which trainers leave a log in a folder."""


def open_log(path: str | Path) -> Trace:
    """The trace of a run directory, or of anybody's log."""
    path = Path(path).expanduser()
    if path.is_dir():
        if (path / RUN_FILE).is_file() or next(path.glob("*.arrow"), None) is not None:
            return Trace.open(path)
        return _trace(_read_folder(path))
    if not path.is_file():
        raise TraceError(f"There is no file or folder {path}.\nCheck the path. {_READABLE}")
    return _trace(_read_file(path))


def _trace(log: Log) -> Trace:
    """Rows to tables, with a `run` that says where every column came from."""
    settings = settings_of(log.config)
    run: dict[str, Any] = dict.fromkeys(_UNKNOWN)
    run |= {"source": f"import:{log.source}", "path": str(log.path)}
    rollouts: list[dict[str, Any]] = []
    if not log.entries:
        raise nothing_in(log, "rows")
    if log.source in KINDS:
        rollouts = rollout_rows(log)
        steps = summed_up(rollouts)
        run |= {"aliases": {}, "unrecognised": []}
    else:
        steps, resolution = step_table(log, scale_rewards=settings["scale_rewards"])
        run |= {"aliases": resolution.aliases, "unrecognised": resolution.unrecognised}
    run |= {
        "seed": settings["seed"],
        "settings": settings,
        "notes": log.notes,
        "unusable": len(log.bad),
    }
    trace = Trace.from_rows(run=run, steps=steps, rollouts=rollouts)
    trace.warnings.extend(log.told_bad())
    return trace


def _read_file(path: Path) -> Log:
    start = head(path)
    if not start.strip():
        raise TraceError(f"{path} is empty.\nGive a log with at least one row.")
    if start.startswith(MAGIC) or path.suffix == ".wandb":
        return read_wandb(path)
    if NAME in path.name:
        return read_events(path, [path])
    return as_rollouts(_text_reader(path)(path))


def _text_reader(path: Path) -> Callable[[Path], Log]:
    """By the name, else by the first character."""
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return lambda path: read_jsonl(path, source="jsonl")
    if suffix in (".csv", ".tsv"):
        return read_csv
    first = next((line for _, line in lines(path) if line.strip()), "").strip()
    if suffix == ".json" or first[:1] in "[{":
        return read_json
    if any(mark in first for mark in ",;\t"):
        return read_csv
    raise TraceError(f"{path} begins with {first[:60]!r}, which no log does.\n{_READABLE}")


def _read_folder(folder: Path) -> Log:
    """What a folder holds, most telling first."""
    if state := find_state(folder):
        return read_json(state)
    dumps = sorted(folder.glob("[0-9]*.jsonl"), key=lambda p: (len(p.stem), p.stem))
    if dumps and all(dump.stem.isdigit() for dump in dumps):
        return _read_dumps(folder, dumps)
    if runs := find_wandb(folder):
        return read_wandb(_only(folder, runs))
    if events := find_events(folder):
        _only(folder, sorted({event.parent for event in events}))
        return read_events(folder, events)
    if logs := [folder / name for name in _FILES if (folder / name).is_file()]:
        return _read_file(_only(folder, logs))
    seen = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise TraceError(f"{folder} holds no log that is known by its name; seen: {seen}.\n{_READABLE}")


def _only(folder: Path, found: list[Path]) -> Path:
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"  {path}" for path in found[:8])
    raise TraceError(
        f"{folder} holds {len(found)} logs, and a trace is of one run:\n{listed}\nGive one of them."
    )


def _read_dumps(folder: Path, files: list[Path]) -> Log:
    """verl's rollouts, a file per step; the file's name is the step where a row names none."""
    log = Log(source="jsonl", path=folder)
    for file in files:
        part = read_jsonl(file, source="jsonl")
        log.bad.extend(f"{file.name} {reason}" for reason in part.bad)
        for entry in part.entries:
            values = {"step": int(file.stem), **entry.values}
            log.entries.append(Entry(f"{file.name} {entry.place}", values))
    return as_rollouts(log)
