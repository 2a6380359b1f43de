"""The content of a run's page. Of a small run it is made at once. A large one takes seconds, so it
is made beside: until it is there the page says so, and shows what it had before."""

import time
from threading import Thread
from typing import Any

from flatline.diagnosis.report import diagnose
from flatline.report.run_page import run_context
from flatline.report.run_state import State
from flatline.report.series import Run
from flatline.report.web.store import SHARE, Opened, mark_of
from flatline.trace import Trace
from flatline.trace.importers import open_log

SMALL = 20_000
"""Rollouts up to which a page is made at once: under a second."""


def prepared(run: Opened, name: str, state: State) -> tuple[dict[str, Any] | None, bool]:
    """The content, perhaps of some steps ago or none yet, and whether it is of now."""
    now = (run.mark, state)
    if run.problem is not None:
        problem, run.problem = run.problem, None
        raise problem
    if run.made is not None and run.made[0] == now:
        return run.made[1], True
    if len(run.trace.rollouts) <= SMALL:
        report = run.diagnosis(name, patient=state is State.RUNNING)
        run.made = now, _content(run.trace, run, name, report)
        return run.made[1], True
    rested = time.monotonic() - run.when > run.took / SHARE or state is not State.RUNNING
    if rested and (run.maker is None or not run.maker.is_alive()):
        run.maker = Thread(target=_make, args=(run, name, state), daemon=True)
        run.maker.start()
    return (run.made[1] if run.made else None), False


def _make(run: Opened, name: str, state: State) -> None:
    """With a trace of its own, so that others need not wait for this one."""
    began = time.monotonic()
    try:
        mark = mark_of(run.path)
        trace = open_log(run.path)
        report = diagnose(trace, name=name)
        made = _content(trace, run, name, report)
    except Exception as error:
        run.problem = error  # whoever asks next is told
        return
    run.report, run.diagnosed = report, mark
    run.when = time.monotonic()
    run.took = run.when - began
    run.made = (mark, state), made


def _content(trace: Trace, run: Opened, name: str, report: Any) -> dict[str, Any]:
    last = int(trace.steps["step"].max()) if len(trace.steps) else 0
    about = Run(trace=trace, folder=run.folder, name=name)
    return {**run_context(about, report), "last_step": last}
