"""One cell, in a process of its own: checkup, training, held-out reward, diagnoses, `cell.json`.

    FOLDER/cells/NAME/
      plan.json    what the cell is, written before it starts
      log.txt      all that it printed
      checkup.json the whole report of the checkup
      run/         the trace; removed at the end unless it is kept
      cell.json    written last: the cell is finished, and is never run again

Training that raises is a result like any other: what it recorded until then is diagnosed.
"""

import json
import platform
import shutil
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.looks import brief, looks
from bench.plan import Cell
from flatline.bench.versions import source_digest, versions_of
from flatline.config import RunConfig
from flatline.errors import ConfigError, FlatlineError
from flatline.files import write_atomically
from flatline.hypotheses import HYPOTHESES
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.training.run import Result

PLAN_FILE, RESULT_FILE, LOG_FILE, RUN = "plan.json", "cell.json", "log.txt", "run"
CHECKUP_FILE = "checkup.json"
VERSION = 1
UNTAKEN, CHECKUP, DIAGNOSE = "untaken", "checkup", "diagnose"
"""Looks that a cell lacks because nobody took them, as in one made of an older run."""
TAIL = 12
"""Lines of a traceback or log that a failure keeps."""
_PACKAGES = ("flatline", "torch", "transformers", "trl", "peft")


def run_cell(folder: Path, *, keep_trace: bool) -> None:
    """Everything about the cell whose plan lies in the folder."""
    cell = planned(folder)
    start = time.perf_counter()
    config = cell.config(folder / RUN)
    facts: dict[str, Any] = {CHECKUP: _checkup(config, folder)}
    facts["training"], result = _train(config)
    facts |= _scored(result) if result else {}
    facts |= _looked(folder / RUN, cell.steps)
    _clean(folder / RUN, keep_trace=keep_trace)
    facts["seconds"] = round(time.perf_counter() - start, 1)
    facts["versions"] = _versions()
    write_result(folder, cell, facts)


def planned(folder: Path) -> Cell:
    """The plan that lies in a cell's folder."""
    path = folder / PLAN_FILE
    try:
        return Cell.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.\nA cell is started by `flatline bench`."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not the plan of a cell: {error}.\nRemove the folder; `flatline bench` "
            "writes it again."
        ) from error


def write_result(folder: Path, cell: Cell, facts: Mapping[str, Any]) -> None:
    """The one file that says that the cell is finished."""
    shape = {**facts, "version": VERSION, "cell": cell.to_json()}
    write_atomically(folder / RESULT_FILE, [json.dumps(shape, indent=1)])


def _checkup(config: RunConfig, folder: Path) -> dict[str, Any]:
    """What is seen before training; a trainer that cannot be built or played says so."""
    from flatline.diagnosis.checkup import checkup
    from flatline.training.trainer import built_aside

    start = time.perf_counter()
    try:
        with built_aside(config) as built:
            report = checkup(built, hypotheses=HYPOTHESES)
    except Exception as error:
        return _failure(error)
    # What a user waits for has the building of the trainer in it.
    seconds = round(time.perf_counter() - start, 1)
    write_atomically(folder / CHECKUP_FILE, [json.dumps(report.to_json())])
    return {**brief(report), "seconds": seconds}


def _train(config: RunConfig) -> "tuple[dict[str, Any], Result | None]":
    from flatline.training.run import train

    try:
        result = train(config)
    except Exception as error:
        return _failure(error), None
    return {"steps": result.steps, "seconds": round(result.seconds, 1)}, result


def _failure(error: Exception) -> dict[str, Any]:
    first = next(iter(str(error).splitlines()), "")
    tail = traceback.format_exc().splitlines()[-TAIL:]
    return {"failure": f"{type(error).__name__}: {first}", "tail": tail}


def _scored(result: "Result") -> dict[str, Any]:
    """Held-out reward play by play, which is what runs are compared by."""
    first, last = result.scores[0], result.scores[-1]
    assert result.gain is not None
    return {
        "heldout": {
            "problems": last.problems,
            "before": [round(reward, 4) for reward in first.rewards],
            "after": [round(reward, 4) for reward in last.rewards],
            "gain": result.gain.to_json(),
        }
    }


def diagnosed_again(folder: Path) -> bool:
    """Diagnose a finished cell anew, with the flatline of today; False where no trace was kept."""
    if not (folder / RUN).is_dir():
        return False
    cell, facts = _finished(folder)
    _take(folder, DIAGNOSE, facts | _looked(folder / RUN, cell.steps))
    return True


def checked_up(folder: Path) -> bool:
    """Take the checkup that a finished cell lacks, with the flatline of today; False where it has
    one."""
    cell, facts = _finished(folder)
    if CHECKUP not in facts.get(UNTAKEN, ()):
        return False
    _take(folder, CHECKUP, facts | {CHECKUP: _checkup(cell.config(folder / RUN), folder)})
    return True


def _finished(folder: Path) -> tuple[Cell, dict[str, Any]]:
    facts = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    return Cell.from_json(facts["cell"]), facts


def _take(folder: Path, look: str, facts: dict[str, Any]) -> None:
    """Write a finished cell again, whose look is now taken."""
    untaken = [name for name in facts.pop(UNTAKEN, ()) if name != look]
    rest = {UNTAKEN: untaken} if untaken else {}
    write_result(folder, Cell.from_json(facts["cell"]), facts | rest)


def _looked(run: Path, steps: int) -> dict[str, Any]:
    """The diagnoses; a run that ended before its first step left nothing to look at."""
    try:
        return looks(Trace.open(run), steps)
    except FlatlineError as error:
        return {"unreadable": str(error)}


def _clean(run: Path, *, keep_trace: bool) -> None:
    """Weights are never kept: they are the bulk of a run and nothing here reads them."""
    if not keep_trace:
        shutil.rmtree(run, ignore_errors=True)
        return
    for path in [run / "model", *run.glob("checkpoint-*")]:
        shutil.rmtree(path, ignore_errors=True)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    return {**found, **versions_of(_PACKAGES), "source": source_digest()}
