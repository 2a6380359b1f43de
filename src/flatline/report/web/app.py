"""The application: addresses, files of the pages, and what is said when something is not there.

/                                 runs, experiments and journals under the folder
/run/NAME                         the page of a run, which follows it while it trains
/rollouts/NAME?from=&finish=...   its rollouts, filtered
/rollout/NAME?step=&rollout=      one of them, token by token
/diagnose/NAME                    asks for a diagnosis (POST); the list shows it
/compare?a=NAME&b=NAME            two runs; with steps and rollouts, two rollouts
/experiment/NAME, /journal/NAME   the same pages that `flatline report` writes
/api/run/NAME/steps?after=N       steps after N, for a page that follows a run
"""

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from flatline.errors import ConfigError, FlatlineError
from flatline.loopback import Bind, guarded
from flatline.report.pages import asset_text, environment
from flatline.report.web.live import steps_after
from flatline.report.web.run_index import NotFoundHere, Root
from flatline.report.web.safety import Headers
from flatline.report.web.store import Store
from flatline.report.web.views import Views

ASSETS = (
    "drawing.js",
    "flatline.css",
    "flatline.js",
    "heat.js",
    "live.js",
    "plots.js",
    "tokens.css",
    "tokens.js",
    "ui.css",
    "ui.js",
)
LARGEST_BODY = 1024
"""Bytes of a request beyond its head: nothing is sent but which run to diagnose, by the address."""
WARM = 2**22
"""Numbers moved once, so that the system hands out the memory for them before a page asks."""
_KINDS = {"css": "text/css", "js": "text/javascript"}


def application(path: Path, bind: Bind) -> ASGIApp:
    """All pages of a folder of runs, of one run, or of a journal, behind the guard."""
    _warm_up()
    root, store = Root(path), Store()
    views = Views(root, store, environment(asset_link))

    def steps(request: Request) -> Response:
        return steps_after(request, root, store)

    def wrong(request: Request, error: Exception) -> Response:
        return HTMLResponse(views.message(error), status_code=_status(error))

    pages = {
        "/": views.index,
        "/run/{name:path}": views.run,
        "/rollouts/{name:path}": views.rollouts,
        "/rollout/{name:path}": views.rollout,
        "/compare": views.compare,
        "/experiment/{name:path}": views.experiment,
        "/journal/{name:path}": views.journal,
        "/api/run/{name:path}/steps": steps,
        "/assets/{name}": _asset,
        "/favicon.ico": _icon,
    }
    app = Starlette(
        routes=[
            *(Route(address, answer) for address, answer in pages.items()),
            Route("/diagnose/{name:path}", views.diagnose, methods=["POST"]),
        ],
        exception_handlers={FlatlineError: wrong, HTTPException: wrong, OSError: wrong},
    )
    return Headers(guarded(app, hosts=bind.hosts, token=bind.token, max_body=LARGEST_BODY))


def _warm_up() -> None:
    """What the first page would wait for: pandas is loaded, and Arrow gets some of its memory."""
    np.asarray(pa.chunked_array([[1]]))
    some = pa.array(np.ones(WARM, dtype=np.float32))
    for _ in range(4):
        some.take(pa.array(np.arange(WARM)))


def asset_link(name: str) -> Markup:
    """An asset by its address, which changes with its content, so that it can be kept for ever."""
    address = f"/assets/{name}?v={_digest(name)}"
    if name.endswith(".css"):
        return Markup('<link rel="stylesheet" href="{}">').format(address)
    return Markup('<script src="{}" defer></script>').format(address)


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        raise NotFoundHere(f"There is no {name!r} here.")
    kept = {"cache-control": "public, max-age=31536000, immutable"}
    fresh = request.query_params.get("v") == _digest(name)
    return Response(
        asset_text(name),
        media_type=_KINDS[name.rpartition(".")[2]],
        headers=kept if fresh else {"cache-control": "no-cache"},
    )


def _icon(request: Request) -> Response:
    """A flat line."""
    line = '<path d="M1 9h5l1-4 2 6 1-2h5" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>'
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">{line}</svg>'
    return Response(picture, media_type="image/svg+xml", headers={"cache-control": "max-age=86400"})


@cache
def _digest(name: str) -> str:
    return hashlib.sha256(asset_text(name).encode()).hexdigest()[:12]


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, NotFoundHere):
        return 404
    return 400 if isinstance(error, ConfigError) else 422
