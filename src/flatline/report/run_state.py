"""Is a run still going? Its files say: a finished one has an end, a live one holds its lock."""

from enum import StrEnum
from pathlib import Path
from typing import Any

from flatline.trace.lock import is_live


class State(StrEnum):
    """How a recorded run stands."""

    FINISHED = "finished"
    RUNNING = "still running"
    CRASHED = "not closed"
    LOG = "imported log"


MEANING = {
    State.FINISHED: "",
    State.RUNNING: "This run is still training: the page shows what was recorded so far.",
    State.CRASHED: "This run was never closed: it crashed or was killed. "
    "The page shows what it recorded until then.",
    State.LOG: "This is a log of another tool: it has only what that tool wrote.",
}
"""What a reader of the page should know."""


def state_of(run: dict[str, Any], folder: Path | None) -> State:
    """From what `run.json` says and who holds the lock of the folder."""
    if folder is None or str(run.get("source", "")).startswith("import:"):
        return State.LOG
    if run.get("ended"):
        return State.FINISHED
    return State.RUNNING if is_live(folder) else State.CRASHED
