"""JSON files: a list of rows, or an object that holds one, as TRL's `trainer_state.json` does, or a
history of each metric.

    {"global_step": 250, "max_steps": 250, "train_batch_size": 1, "log_history": [
        {"step": 1, "reward": 0.0, "kl": 0.0, "rewards/correctness_reward_func": 0.0, ...}, ...]}

The Trainer of transformers writes that file into every checkpoint, so a checkpoint folder or the
output folder above it will do as well.
"""

import json
import re
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.trace.importers.histories import histories_in, read_histories
from flatline.trace.importers.log import Entry, Log, quoted
from flatline.trace.importers.run_table import WHOLE_HISTORY
from flatline.trace.importers.text import document, inside, parsed, read_jsonl

STATE = "trainer_state.json"
ROW_KEYS = ("log_history", "steps", "history", "logs", "metrics", "log", "data", "rows", "results")
"""Keys under which a file keeps its rows, most telling first."""
_STATE_SETTINGS = ("max_steps", "train_batch_size")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def find_state(folder: Path) -> Path | None:
    """The `trainer_state.json` of a checkpoint, or of the latest checkpoint of an output folder."""
    if (folder / STATE).is_file():
        return inside(folder, [folder / STATE])[0]
    named = ((_CHECKPOINT.fullmatch(path.parent.name), path) for path in folder.glob(f"*/{STATE}"))
    found = [(int(match[1]), path) for match, path in named if match]
    return inside(folder, [max(found)[1]])[0] if found else None


def read_json(path: Path) -> Log:
    """The rows of a JSON file; one with an object on each line is read as JSONL."""
    if path.name.startswith("wandb-summary"):
        raise _summary(path)
    try:
        data = parsed(document(path))
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return read_jsonl(path, source="jsonl")
        raise _broken(path, error) from error
    if isinstance(data, dict) and isinstance(data.get("log_history"), list):
        return _trainer_state(path, data)
    if isinstance(data, dict):
        for metrics in (data.get("metrics"), {} if data.keys() & set(ROW_KEYS) else data):
            if histories := histories_in(metrics):
                return read_histories(path, histories, data.get("params"))
    return _log(path, "json", _rows_in(path, data))


def _trainer_state(path: Path, state: dict[str, Any]) -> Log:
    log = _log(path, "trl", state["log_history"])
    log.config = {name: state[name] for name in _STATE_SETTINGS if name in state}
    every = state.get("logging_steps")
    if isinstance(every, int) and every > 1:
        log.notes.append(f"Every row is the mean of {every} steps (logging_steps).")
    return log


def _log(path: Path, source: str, rows: list[Any]) -> Log:
    log = Log(source=source, path=path)
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict):
            log.entries.append(Entry(f"row {number}", row))
        else:
            log.bad.append(f"row {number}: not an object: {quoted(row)}")
    return log


def _rows_in(path: Path, data: Any) -> list[Any]:
    """The list of rows: the file itself, or what it keeps under a telling key."""
    if isinstance(data, list):
        return data
    if isinstance(data, dict):
        keys = [*(key for key in ROW_KEYS if key in data), *data]
        for key in keys:
            if _is_rows(data[key]):
                return list(data[key])
    kind = f"an object with {quoted(sorted(data))}" if isinstance(data, dict) else quoted(data)
    raise TraceError(
        f"{path} holds {kind}, and no list of rows.\n"
        f"A log is a list of objects, bare or under a key such as {', '.join(ROW_KEYS[:5])}."
    )


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _summary(path: Path) -> TraceError:
    return TraceError(
        f"{path} is the summary of a W&B run: the last value of every metric, without a history.\n"
        "Why a curve is flat cannot be seen in one point. Give the run's `run-*.wandb` file, or "
        f"export all of the history: {WHOLE_HISTORY}."
    )


def _broken(path: Path, error: ValueError) -> TraceError:
    if isinstance(error, json.JSONDecodeError):
        line = error.doc.split("\n")[error.lineno - 1]
        if not line and not error.doc.strip():
            return TraceError(f"{path} is empty.\nGive a log with at least one row.")
        seen = f"{path}, line {error.lineno} is not JSON ({error.msg}): {quoted(line.strip())}"
    else:
        seen = f"{path} is not JSON that can be read ({error})"
    return TraceError(
        f"{seen}.\nIf the file was cut off while it was written, take the one of the checkpoint "
        "before; rows written one to a line belong in a `.jsonl` file."
    )
