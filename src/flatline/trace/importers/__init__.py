"""Other people's logs as traces: `open_log(path)` finds out what a path is.

    a run directory                 flatline's own recording
    trainer_state.json              TRL and transformers; also a checkpoint or output folder
    *.json                          a list of rows, bare or under a key
    *.jsonl, *.csv                  one row per step; verl's metrics log, exported W&B history
    *.log, *.txt, *.out             what a trainer printed: rows among other lines, or blocks
    *.wandb                         W&B's run file, online or offline; also its folder
    events.out.tfevents.*           TensorBoard; also its folder
    mlflow.db[#RUN], mlruns/E/RUN   MLflow's database, or its folder of files
    wandb:E/P/R, mlflow:, trackio:  a run by the name that its tracker knows; see `tracked.py`
    rollouts                        of verl, prime-rl, NeMo-RL, SkyRL and verifiers; see `dumps.py`

A trace has only what its source has: a missing column is `NotRecorded`, never a guess.
`run["notes"]` tells the choices that were made, `run["aliases"]` which name fills which column, and
`run["unrecognised"]` the names that no alias knows.
"""

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.trace.files import table_files
from flatline.trace.folder import RUN_FILE
from flatline.trace.importers.blocks import prints_blocks, read_blocks
from flatline.trace.importers.csv_file import read_csv
from flatline.trace.importers.dumps import find_dumps, read_dumps, read_rows
from flatline.trace.importers.json_file import find_state, read_json
from flatline.trace.importers.log import Log, nothing_in
from flatline.trace.importers.mlflow_store import (
    DATABASE,
    SQLITE,
    find_file_runs,
    is_file_run,
    read_database,
    read_file_run,
    split_run,
)
from flatline.trace.importers.printed import prints_rows, read_printed
from flatline.trace.importers.rollouts import KINDS, as_rollouts, tables
from flatline.trace.importers.run_table import refuse_runs
from flatline.trace.importers.settings import setting_names, settings_of
from flatline.trace.importers.steps import step_table
from flatline.trace.importers.tensorboard import NAME, find_events, read_events
from flatline.trace.importers.text import ZSTD, head, inside, lines
from flatline.trace.importers.tracked import read_tracked, tracker_of
from flatline.trace.importers.wandb_file import MAGIC, find_wandb, read_wandb
from flatline.trace.reader import Trace

__all__ = ["open_log"]

_READABLE = (
    "flatline reads its own run directories, trainer_state.json, .json, .jsonl, .csv, what "
    "trainers print (a step, names and numbers in a line or below it), W&B .wandb files, "
    "TensorBoard event files, MLflow's stores, and rollouts of verl, prime-rl, NeMo-RL, SkyRL and "
    "verifiers; see docs/a-log.md."
)
_UNKNOWN = ("created", "versions", "commit", "fault", "hardware")
"""What `run.json` of a recorded run says, and no log does."""
_FILES = (
    *("metrics.jsonl", "monitors/file/metrics.jsonl", "results.jsonl", "wandb-history.jsonl"),
    DATABASE,
)
"""Names under which trainers leave a log in a folder."""


def open_log(path: str | Path) -> Trace:
    """The trace of a run directory, of anybody's log, or of a run that a tracker knows by name."""
    if tracker_of(str(path)):
        return _trace(read_tracked(str(path)))
    path, run = split_run(Path(path).expanduser())
    if path.is_dir():
        if (path / RUN_FILE).is_file() or table_files(path):
            return Trace.open(path)
        return _trace(_read_folder(path))
    if path.exists() and not path.is_file():
        raise TraceError(
            f"{path} is a pipe or a device, and a log is read more than once.\n"
            "Save it first and give the file: `COMMAND > log.jsonl`."
        )
    if not path.is_file():
        raise TraceError(f"There is no file or folder {path}.\nCheck the path. {_READABLE}")
    return _trace(_read_file(path, run))


def _trace(log: Log) -> Trace:
    """Rows to tables, with a `run` that says where every column came from."""
    if not log.entries:
        raise nothing_in(log, "rows")
    settings = settings_of(log.config)
    run: dict[str, Any] = dict.fromkeys(_UNKNOWN)
    run |= {"source": f"import:{log.source}", "path": str(log.path)}
    rollouts: list[dict[str, Any]] = []
    tokens: list[dict[str, Any]] = []
    if log.source in KINDS:
        rollouts, tokens, steps = tables(log)
        run |= {"aliases": {}, "unrecognised": sorted(log.unrecognised)}
        if tokens and settings["bf16"] is None:
            _assume_bf16(log, settings)
    else:
        steps, resolution, turns, clock = step_table(log, scale_rewards=settings["scale_rewards"])
        run |= {"aliases": resolution.aliases, "unrecognised": resolution.unrecognised}
        run["clock"] = clock
        run["waited"] = {str(one.step): one.waited for one in turns if isfinite(one.waited)}
    run |= {
        "seed": settings["seed"],
        "settings": settings,
        "setting_names": setting_names(log.config),
        "notes": log.notes,
        "unusable": len(log.bad),
        "error": log.error,
    }
    trace = Trace.from_rows(run=run, steps=steps, rollouts=rollouts, tokens=tokens)
    trace.warnings.extend(log.told_bad())
    return trace


def _assume_bf16(log: Log, settings: dict[str, Any]) -> None:
    """The precision decides how far sampler and trainer may differ; the wider bound is safe."""
    settings["bf16"] = True
    log.notes.append("The dump does not say its precision: it is judged as bf16.")


def _read_file(path: Path, run: str | None = None) -> Log:
    start = head(path)
    if not start.strip():
        raise TraceError(f"{path} is empty.\nGive a log with at least one row.")
    if start.startswith(SQLITE):
        return read_database(path, run)
    if start.startswith(MAGIC) or path.suffix == ".wandb":
        return read_wandb(path)
    if path.suffix == ".pkl":
        raise _pickle(path)
    if NAME in path.name:
        return read_events(path, [path])
    reader = _text_reader(path)
    log = read_csv(path, run) if reader is read_csv else reader(path)
    refuse_runs(log)
    return as_rollouts(log)


def _text_reader(path: Path) -> Callable[[Path], Log]:
    """By the name, else by the first character."""
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson", ZSTD):
        return read_rows
    if suffix in (".csv", ".tsv"):
        return read_csv
    if suffix != ".json" and prints_rows(path):
        return read_printed
    if suffix != ".json" and prints_blocks(path):
        return read_blocks
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
    if dumps := find_dumps(folder):
        _only(folder, [Path(run) for run in sorted({dump.run for dump in dumps})])
        return read_dumps(folder, dumps)
    if runs := find_wandb(folder):
        return read_wandb(_only(folder, runs))
    if events := find_events(folder):
        _only(folder, sorted({event.parent for event in events}))
        return read_events(folder, events)
    if runs := [folder] if is_file_run(folder) else find_file_runs(folder):
        return read_file_run(_only(folder, runs))
    if logs := [folder / name for name in _FILES if (folder / name).is_file()]:
        return _read_file(_only(folder, inside(folder, logs)))
    seen = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise TraceError(f"{folder} holds no log that is known by its name; seen: {seen}.\n{_READABLE}")


def _only(folder: Path, found: list[Path]) -> Path:
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"  {path}" for path in found[:8])
    raise TraceError(
        f"{folder} holds {len(found)} logs, and a trace is of one run:\n{listed}\nGive one of them."
    )


def _pickle(path: Path) -> TraceError:
    return TraceError(
        f"{path} is a pickle, which runs code when it is opened, so flatline never does.\n"
        "SkyRL's evaluation dumps (`dumped_evals/*/*.jsonl`) and its W&B or TensorBoard log can be "
        "read; see docs/other-trainers.md."
    )
