"""What a page asks again and again while a run trains: are there new steps? Small, and nothing at
all (304) where there are none."""

import hashlib
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flatline.errors import ConfigError
from flatline.report.run_state import state_of
from flatline.report.web.run_index import Root
from flatline.report.web.store import Store
from flatline.trace import Trace

MOST = 500
"""Steps in one answer."""
COLUMNS = ("reward", "heldout_reward", "kl", "entropy", "grad_norm", "loss", "seconds")


def steps_after(request: Request, root: Root, store: Store) -> Response:
    """The steps after the one that the page knows, and how the run stands."""
    name, after = request.path_params["name"], whole(request, "after", 0)
    path = root.run(name)
    with store.hold(path) as run:
        state = state_of(run.trace.run, path).value
        tag = tag_of(run.mark, state, after)
        if is_known(request, tag):
            return Response(status_code=304, headers={"etag": tag})
        answer = {"state": state, **_steps(run.trace, after)}
    return JSONResponse(answer, headers={"etag": tag, "cache-control": "no-cache"})


def tag_of(*parts: object) -> str:
    """A name for one state of a page."""
    return f'"{hashlib.sha256(repr(parts).encode()).hexdigest()[:20]}"'


def is_known(request: Request, tag: str) -> bool:
    """Whether the browser has it already."""
    return tag in request.headers.get("if-none-match", "")


def whole(request: Request, key: str, default: int | None = None) -> int:
    """A whole number from the address."""
    text = request.query_params.get(key)
    if not text and default is not None:
        return default
    if not text or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ConfigError(f"{key}={text!r} is not a whole number from 0.\nCorrect the address.")
    return int(text)


def _steps(trace: Trace, after: int) -> dict[str, Any]:
    frame = trace.steps
    if not len(frame):
        return {"last": 0, "steps": []}
    number = frame["step"].astype(np.int64)
    rows = np.flatnonzero(number > after)[:MOST]
    known = [column for column in COLUMNS if column in frame]
    steps = [
        {"step": int(number[row]), **{name: _plain(frame[name][row]) for name in known}}
        for row in rows
    ]
    return {"last": int(number.max()), "steps": steps}


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
