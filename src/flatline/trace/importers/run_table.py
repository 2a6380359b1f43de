"""A table of runs, as W&B's and MLflow's pages export it: one row a run, no history.

    "Name","State","Created","Runtime","beta","train/reward"
    "grpo-a","finished","2025-09-01T10:00:00.000Z","3600","0.04","0.41"

Read as a log its runs would be steps, and their differences a trend.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flatline.errors import TraceError
from flatline.trace.importers.log import Entry, Log, quoted

NAMES = ("name", "run_name", "display_name", "run_id", "run")
"""Columns that name a run, as they are written in lower case with `_` for a blank."""
STATES = {"finished", "crashed", "failed", "killed", "running", "pending"}
STATES |= {"preempting", "preempted", "scheduled"}
"""What becomes of a run, in W&B's words and in MLflow's."""
OF_WANDB, OF_MLFLOW = frozenset({"created", "runtime"}), frozenset({"experiment_id", "start_time"})
SAVED = frozenset({"summary", "config"})
"""Columns of the table that W&B's manual makes with its client; a dictionary in each cell."""
SHOWN = 3
WHOLE_HISTORY = (
    "`pandas.DataFrame(wandb.Api().run(PATH).scan_history()).to_csv('history.csv', index=False)`"
)


def refuse_runs(log: Log) -> None:
    """Raises `TraceError` for a table whose rows are runs and not steps."""
    first = _lower(log.entries[0].values) if log.entries else {}
    names = [one for one in NAMES if first.get(one)]
    rows = [_lower(entry.values) for entry in log.entries] if names else []
    name = next((one for one in names if all(row.get(one) for row in rows)), None)
    if name is None or not _are_runs(rows, name):
        return
    shown = [_told(*one, name) for one in zip(log.entries[:SHOWN], rows, strict=False)]
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    raise TraceError(
        f"{log.path} is a table of runs, one a row: {', '.join(shown)}{more}.\n"
        "It has what each run ended with and no history, so its rows are no steps, and why a curve "
        "is flat cannot be seen in one point.\n"
        f"Export the history of one run: {WHOLE_HISTORY}; or type "
        "`flatline diagnose wandb:ENTITY/PROJECT/RUN`; for MLflow, `flatline diagnose "
        "mlflow:URI#RUN`."
    )


def _are_runs(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    columns = set().union(*rows)
    if columns >= OF_WANDB and _all_states(rows, "state"):
        return True  # names of runs may repeat
    if len({str(row[name]) for row in rows}) < len(rows):
        return False  # a log that writes its run's name into every row
    if columns >= OF_WANDB or _all_states(rows, "state"):
        return True
    if columns & OF_MLFLOW and _all_states(rows, "status"):
        return True
    return columns >= SAVED and all(str(row.get(one))[:1] == "{" for row in rows for one in SAVED)


def _all_states(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return all(str(row.get(column)).lower() in STATES for row in rows)


def _lower(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name).strip().lower().replace(" ", "_"): one for name, one in values.items()}


def _told(entry: Entry, row: Mapping[str, Any], name: str) -> str:
    state = row.get("state") or row.get("status")
    return f"{entry.place} is {quoted(row[name])}" + (f" ({quoted(state)[1:-1]})" if state else "")
