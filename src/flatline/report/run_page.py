"""The page of a run: the verdict first, then its evidence, then every chart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatline.diagnosis.found import explained_by
from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import Report, diagnose
from flatline.hypotheses.base import Finding, Level
from flatline.report import examples
from flatline.report.charts import Chart, chart_data
from flatline.report.opening import opening_of
from flatline.report.pages import render
from flatline.report.run_charts import POINTS_TO, draw
from flatline.report.run_comparison import comparison
from flatline.report.run_state import MEANING, State, state_of
from flatline.report.series import Run
from flatline.trace import Trace
from flatline.trace.importers import open_log

_REST = {
    Level.NOTE: "Worth knowing",
    Level.OK: "Ruled out, and by what",
    Level.UNKNOWN: "Could not be tested on this run, and why",
}
_WORDS = {Level.FAULT: "broken", Level.SUSPECT: "suspected"}


def run_page(path: Path, other: Path | None = None) -> str:
    """One self-contained page of a run directory or a log, perhaps compared with another."""
    names = _names(path, other)
    run = _opened(path, names[0])
    trace, report = run.trace, diagnose(run.trace, name=run.name)
    shown = _rendered(trace, examples.chosen(trace, report)) if len(trace.rollouts) else []
    compared = comparison(run, _opened(other, names[1])) if other else None
    return render("run.html", run_context(run, report, shown, compared))


def _opened(path: Path, name: str) -> Run:
    return Run(trace=open_log(path), folder=path if path.is_dir() else None, name=name)


def _names(path: Path, other: Path | None) -> tuple[str, str]:
    """What the runs are called: the last part of their paths, or all where that is the same."""
    ends = path.resolve().name, other.resolve().name if other else ""
    return ends if ends[0] != ends[1] else (str(path), str(other))


def run_context(
    run: Run,
    report: Report,
    shown: Sequence[tuple[examples.Example, Markup]] = (),
    compared: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the template `run.html` shows."""
    state = state_of(run.trace.run, run.folder)
    if state is State.RUNNING:  # its first step is still to come
        report = replace(report, made_no_step=False)
    charts, missing = draw(run, report)
    cause = report.causes[0].hypothesis if report.causes else ""
    opening = opening_of(run.trace, report, charts, POINTS_TO.get(cause, ()))
    first = [opening.chart] if opening and opening.chart else []
    both = [*(compared["charts"] if compared else ()), *charts, *first]
    return {
        "title": run.name,
        "state": state.value,
        "state_text": (state is State.CRASHED and run.trace.stopped) or MEANING[state],
        "answer": report.answer,
        "question": report.question,
        "opening": opening,
        "verdict": verdict_of(report),
        "alarms": _alarms(report, charts),
        "rest": _rest(report),
        "remarks": report.remarks,
        "charts": [one for one in charts if not opening or one.id != _id(opening.chart)],
        "chart_data": chart_data(both),
        "compared": compared,
        "missing": missing,
        "examples": shown,
        "facts": _facts(run),
        "settings": _settings(run.trace),
        # Charts read columns that no hypothesis asked for: more may be known by now.
        "warnings": list(dict.fromkeys([*report.caveats, *run.trace.caveats])),
        "damaged": report.damaged,
    }


def _id(chart: Chart | None) -> str | None:
    return chart.id if chart else None


def verdict_of(report: Report) -> str:
    """The level of the page as a whole: a class of the style sheet and a word."""
    wrong = report.causes or report.troubles
    if wrong:
        return wrong[0].level.value
    sound = report.outcome is Outcome.HEALTHY and not report.pointers
    return "ok" if sound else "unknown"


def _alarms(report: Report, charts: Sequence[Chart]) -> list[dict[str, Any]]:
    explained = explained_by(report.findings)
    titles = {chart.id: chart.title for chart in charts}
    return [
        {
            "finding": alarm,
            "word": _WORDS[alarm.level],
            "cause": explained.get(alarm.hypothesis),
            "charts": [
                (id, titles[id]) for id in POINTS_TO.get(alarm.hypothesis, ()) if id in titles
            ],
        }
        for alarm in report.alarms
    ]


def _rest(report: Report) -> list[tuple[str, list[Finding]]]:
    listed = []
    for level, title in _REST.items():
        found = [finding for finding in report.findings if finding.level is level]
        if found:
            listed.append((title, sorted(found, key=lambda finding: finding.hypothesis)))
    return listed


def _rendered(
    trace: Trace, chosen: Sequence[examples.Example]
) -> list[tuple[examples.Example, Markup]]:
    from flatline.report.rollout_view import render_rollout

    return [(one, render_rollout(trace, one.step, one.rollout)) for one in chosen]


def _facts(run: Run) -> list[tuple[str, str]]:
    """What a reader wants to know of a run before its charts."""
    said, trace = run.trace.run, run.trace
    asked = _mapping(said.get("requested"))
    facts = [
        ("task", asked.get("task")),
        ("model", asked.get("model")),
        ("steps", _steps_text(trace)),
        ("rollouts", f"{len(trace.rollouts):,}" if len(trace.rollouts) else None),
        ("seed", said.get("seed")),
        ("planted fault", said.get("fault")),
        ("started", _moment(said.get("created"))),
        ("read from", said.get("path")),
    ]
    return [(name, str(value)) for name, value in facts if value is not None]


def _mapping(value: object) -> Mapping[str, object]:
    """A part of `run.json`, which anyone may have edited."""
    return value if isinstance(value, Mapping) else {}


def _moment(text: object) -> str | None:
    """`2026-11-15T07:08:10+00:00` without what nobody reads."""
    return f"{text[:10]} {text[11:16]}" if isinstance(text, str) else None


def _steps_text(trace: Trace) -> str:
    steps = int((trace.steps["step"] > 0).sum()) if len(trace.steps) else 0
    planned = trace.settings.get("max_steps")
    tokens = len(trace.token_steps)
    of = f" of {planned}" if isinstance(planned, int) and planned > steps else ""
    detail = "" if tokens >= steps else f", {tokens:,} with token detail"
    return f"{steps:,}{of}{detail}"


def _settings(trace: Trace) -> list[tuple[str, str]]:
    versions = _mapping(trace.run.get("versions"))
    rows = [(name, value) for name, value in trace.settings.items() if value is not None]
    rows += [(f"version of {name}", value) for name, value in versions.items()]
    return [(name, str(value)) for name, value in rows]
