"""What every address shows. Pages are made on the server; all state is in the address."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from flatline.errors import ConfigError
from flatline.report import compare
from flatline.report.charts import chart_data
from flatline.report.rollout_view import rollout_data
from flatline.report.run_comparison import comparison
from flatline.report.run_state import state_of
from flatline.report.series import Run
from flatline.report.web import links, rollout_list
from flatline.report.web.diagnoses import Diagnoses, with_answer
from flatline.report.web.live import is_known, tag_of, whole
from flatline.report.web.run_index import Entry, Root, signature
from flatline.report.web.run_making import prepared
from flatline.report.web.store import Opened, Store
from flatline.trace import Trace

MOST_RUNS = 500
"""Rows of the list of runs; a search finds the others."""
WIDTH, HEIGHT = 120, 26
"""Of the small reward curve."""


class Views:
    """The pages over one folder."""

    def __init__(self, root: Root, store: Store, templates: Environment) -> None:
        self._root, self._store, self._templates = root, store, templates
        self._diagnoses = Diagnoses(root)
        templates.globals["path"] = quote
        templates.globals["spark"] = spark

    def index(self, request: Request) -> Response:
        """Everything under the folder."""
        if self._root.alone:
            return RedirectResponse(f"/run/{quote(self._root.alone)}")
        found = self._root.found()
        search = request.query_params.get("q", "").strip()
        few = len(found.runs) <= MOST_RUNS
        names = found.runs if few or search else found.runs[:MOST_RUNS]
        asked = self._diagnoses.asked(names)
        entries = [with_answer(self._root.entry(name), asked.get(name)) for name in names]
        wanted = {entry.name for entry in entries if _matches(entry, search)}
        context = {
            "folder": self._root.folder.name,
            "search": search,
            # Where all fit, those that do not match are hidden: the search can be changed in place.
            "entries": [e for e in entries if few or e.name in wanted][:MOST_RUNS],
            "wanted": wanted,
            "asked": asked,
            "total": len(found.runs),
            "experiments": found.experiments,
            "journals": found.journals,
        }
        return self._page(request, "index.html", lambda: context, mark=context)

    def diagnose(self, request: Request) -> Response:
        """Have a run diagnosed; the list shows how that goes."""
        self._diagnoses.ask(request.path_params["name"])
        return RedirectResponse("/", status_code=303)

    def run(self, request: Request) -> Response:
        """The page of a run."""
        name = request.path_params["name"]
        with self._store.hold(self._root.run(name)) as run:
            state = state_of(run.trace.run, run.path)
            content, fresh = prepared(run, name, state)
            if content is not None and run.report is not None and run.diagnosed is not None:
                self._diagnoses.keep(name, run.report, run.diagnosed, content["last_step"])
            about = {"name": name, "rollout_address": f"/rollout/{quote(name)}", "fresh": fresh}
            if content is None:
                shown = {**about, "rollouts": len(run.trace.rollouts)}
                return self._page(request, "making.html", lambda: shown, mark=None)
            mark = (run.made and run.made[0], fresh)
            return self._page(request, "live_run.html", lambda: {**content, **about}, mark=mark)

    def rollouts(self, request: Request) -> Response:
        """The rollouts of a run, filtered."""
        name = request.path_params["name"]
        want = rollout_list.asked(request.query_params)
        with self._store.hold(self._root.run(name)) as run:

            def context() -> dict[str, Any]:
                # A large run takes seconds to diagnose: only who asks for evidence waits for it.
                report = run.diagnosis(name, patient=True) if want.hypothesis else run.report
                return {
                    "name": name,
                    "diagnosed": report is not None,
                    "filters": rollout_list.FILTERS,
                    "orders": rollout_list.ORDERS,
                    "finishes": rollout_list.finishes(run.trace),
                    "codes": rollout_list.codes(report),
                    "page_size": rollout_list.PAGE,
                    **rollout_list.listed(run.trace, report, want),
                }

            return self._page(request, "rollouts.html", context, mark=(run.mark, run.diagnosed))

    def rollout(self, request: Request) -> Response:
        """One rollout."""
        name = request.path_params["name"]
        step, number = whole(request, "step"), whole(request, "rollout")
        first = whole(request, "first", whole(request, "token", 0))
        with self._store.hold(self._root.run(name)) as run:

            def context() -> dict[str, Any]:
                known = run.trace.rollouts
                here = known["rollout"][known["step"] == step] if len(known) else ()
                return {
                    "name": name,
                    "data": rollout_data(run.trace, step, number, first=first),
                    "here": f"/rollout/{quote(name)}?step={step}&rollout={number}",
                    "before": max((int(n) for n in here if n < number), default=None),
                    "after": min((int(n) for n in here if n > number), default=None),
                }

            return self._page(request, "rollout.html", context, mark=run.mark)

    def compare(self, request: Request) -> Response:
        """Two runs, or two rollouts, side by side."""
        ticked = request.query_params.getlist("run")
        if ticked:
            return RedirectResponse(f"/compare?{urlencode(_two_of(ticked))}")
        names = [request.query_params.get(side, "") for side in ("a", "b")]
        context: dict[str, Any] = {"names": names, "runs": self._root.found().runs}
        if not all(names):
            shown = {**context, "kind": "choice"}
            return self._page(request, "compare.html", lambda: shown, mark=shown)
        places = [
            (whole(request, f"step_{side}"), whole(request, f"rollout_{side}"))
            for side in ("a", "b")
            if request.query_params.get(f"step_{side}")
        ]
        with self._store.hold_all([self._root.run(name) for name in names]) as runs:
            more = (
                _two_rollouts([run.trace for run in runs], names, places)
                if len(places) == 2
                else _two_runs(runs, names)
            )
            return self._page(request, "compare.html", lambda: context | more, mark=None)

    def experiment(self, request: Request) -> Response:
        """The page of an experiment."""
        from flatline.report.experiment_page import experiment_context

        folder = self._root.resolve(request.path_params["name"])
        context = experiment_context(folder)
        runs = context["runs"]
        begun = links.under_way(self._root, context["plan"], runs)
        context |= {
            "addresses": links.run_addresses(self._root, folder, runs),
            "under_way": begun,
        }
        return self._follow(request, "experiment.html", lambda: context, (signature(folder), begun))

    def journal(self, request: Request) -> Response:
        """The page of a journal."""
        from flatline.report.journal_page import journal_context

        name = request.path_params["name"]
        folder = self._root.resolve(name) if name else self._root.folder

        def context() -> dict[str, Any]:
            return {**journal_context(folder), "places": links.journal_places(self._root, folder)}

        mark = links.journal_mark(self._root, folder)
        return self._follow(request, "journal.html", context, mark)

    def message(self, error: Exception) -> str:
        """What went wrong, as a page."""
        text = error.detail if isinstance(error, HTTPException) else str(error)
        first, *rest = text.splitlines() or ["Something went wrong."]
        return self._templates.get_template("message.html").render(first=first, rest=rest)

    def _follow(
        self, request: Request, base: str, context: Callable[[], dict[str, Any]], mark: object
    ) -> Response:
        def shown() -> dict[str, Any]:
            return {**context(), "base": base, "name": ""}

        return self._page(request, "live_page.html", shown, mark=mark)

    def _page(
        self, request: Request, template: str, context: Callable[[], dict[str, Any]], *, mark: Any
    ) -> Response:
        """A page, or nothing where the browser has it; without a `mark` it is always made."""
        tag = tag_of(mark, str(request.url)) if mark is not None else ""
        headers = (
            {"etag": tag, "cache-control": "no-cache"} if tag else {"cache-control": "no-cache"}
        )
        if tag and is_known(request, tag):
            return Response(status_code=304, headers=headers)
        text = self._templates.get_template(template).render(context())
        return HTMLResponse(text.encode("utf-8", "replace"), headers=headers)


def spark(values: tuple[float, ...]) -> str:
    """Points of a small curve; rewards from 0 to 1 fill its height, others are fitted."""
    low, high = min(0.0, *values), max(1.0, *values)
    across = WIDTH / max(len(values) - 1, 1)
    heights = [HEIGHT - 1 - (HEIGHT - 2) * (value - low) / (high - low) for value in values]
    return " ".join(f"{at * across:.1f},{height:.1f}" for at, height in enumerate(heights))


def _two_of(ticked: list[str]) -> dict[str, str]:
    """The runs that were ticked in the list, as the address of their comparison."""
    if len(ticked) > 2:
        raise ConfigError(
            f"{len(ticked)} runs were ticked, and two can be laid over each other.\n"
            "Go back and leave two of them ticked."
        )
    return dict(zip(("a", "b"), ticked, strict=False))


def _matches(entry: Entry, search: str) -> bool:
    said = (entry.name, entry.task, entry.fault, entry.verdict, entry.answer)
    text = " ".join((*said, entry.state or "cannot be read")).lower()
    return all(word in text for word in search.lower().split())


def _two_runs(runs: list[Opened], names: list[str]) -> dict[str, Any]:
    first, second = (
        Run(trace=run.trace, folder=run.folder, name=name)
        for run, name in zip(runs, names, strict=True)
    )
    compared = comparison(first, second)
    return {"kind": "runs", "compared": compared, "chart_data": chart_data(compared["charts"])}


def _two_rollouts(
    traces: list[Trace], names: list[str], places: list[tuple[int, int]]
) -> dict[str, Any]:
    both = list(zip(names, traces, places, strict=True))
    return {
        "kind": "rollouts",
        "fork": compare.fork(traces[0], traces[1], places[0], places[1]),
        "places": places,
        "sides": [rollout_data(trace, *place) for _, trace, place in both],
        "links": [
            f"/rollout/{quote(name)}?{urlencode({'step': place[0], 'rollout': place[1]})}"
            for name, _, place in both
        ],
    }
