"""The page of an experiment: the verdict, every run behind it, and the plan as registered."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatline.errors import ConfigError
from flatline.experiment.plan import Plan
from flatline.experiment.registration import load_plan
from flatline.experiment.result import RESULT_FILE, VERSION
from flatline.files import json_in
from flatline.report.charts import Chart, chart_data
from flatline.report.experiment_charts import Values, arms_chart, effect_chart
from flatline.report.pages import render

LEVELS = {
    "validated": "ok",
    "partial": "suspect",
    "invalidated": "note",
    "inconclusive": "unknown",
}
"""Ruling -> class of the style sheet; the symbols of a journal say the same."""
_EMPTY: dict[str, Any] = {"runs": [], "looks": [], "verdict": None}


def experiment_page(folder: Path) -> str:
    """One self-contained page of an experiment's folder."""
    return render("experiment.html", experiment_context(folder))


def experiment_context(folder: Path) -> dict[str, Any]:
    """What the template `experiment.html` shows."""
    plan = load_plan(folder)
    result = _result(folder, plan)
    charts = _charts(plan, result)
    verdict = result["verdict"]
    return {
        "title": plan.name,
        "plan": plan,
        "verdict": verdict,
        "level": LEVELS.get(verdict["verdict"], "unknown") if verdict else "unknown",
        "runs": result["runs"],
        "addresses": {},
        "under_way": [],
        "looks": result["looks"],
        "charts": charts,
        "chart_data": chart_data(charts),
        "registered": _registered(plan),
        "arms": [(arm, _settings(plan, arm.name)) for arm in plan.arms],
        "planned": sum(len(plan.seeds_of(arm)) for arm in plan.arms),
    }


def _charts(plan: Plan, result: Mapping[str, Any]) -> list[Chart]:
    values: dict[str, dict[int, float]] = {}
    for run in result["runs"]:
        if run["value"] is not None:
            values.setdefault(run["arm"], {})[run["seed"]] = run["value"]
    if not values:
        return []
    arm = result["looks"][-1]["arm"] if result["looks"] else plan.treated[0].name
    return [*_effect(plan, values, result["looks"], arm), arms_chart(plan, values)]


def _effect(
    plan: Plan, values: Values, looks: Sequence[Mapping[str, Any]], arm: str
) -> list[Chart]:
    both = set(values.get(plan.control.name, {})) & set(values.get(arm, {}))
    return [effect_chart(plan, values, looks, arm)] if both else []


def _result(folder: Path, plan: Plan) -> dict[str, Any]:
    """`result.json`, or nothing before the first run."""
    path = folder / RESULT_FILE
    if not path.exists():
        return _EMPTY
    try:
        found = json_in(path)
        told = found["version"], found["plan"], found["runs"], found["looks"], found["verdict"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {type(error).__name__}: {error}.\n"
            "The runs themselves are not touched by that.\n"
            "Run the experiment again: finished runs are not repeated, the file is written again."
        ) from error
    if told[:2] != (VERSION, plan.digest):
        raise ConfigError(
            f"{path} belongs to version {told[0]!r} and plan {str(told[1])[:12]!r}; the plan "
            f"beside it is version {VERSION}, {plan.digest[:12]!r}.\n"
            "Results of one plan say nothing about another.\nRun the experiment again."
        )
    return dict(found)


def _registered(plan: Plan) -> list[tuple[str, str]]:
    """The plan in words, as it was written before the first run."""
    looks = ", ".join(map(str, plan.looks))
    return [
        ("question", plan.question),
        ("hypothesis", plan.hypothesis),
        ("the one factor", plan.factor),
        ("outcome", plan.outcome),
        ("smallest effect that matters", f"{plan.smallest_effect:g}"),
        ("what must flip", plan.mechanism),
        (
            "error rate",
            f"{plan.alpha:g} for all interim checks and {plan.rule.family} tested effect(s)",
        ),
        ("interim checks, in matched seeds", looks),
        ("seeds of negative controls", ", ".join(map(str, plan.negative_seeds)) or "none"),
        ("registered", plan.registered),
        ("digest", plan.digest),
    ]


def _settings(plan: Plan, name: str) -> list[tuple[str, str]]:
    """What decides the runs of an arm: in full for the control, the differences for others."""
    arms = {arm.name: arm.substance() for arm in plan.arms}
    mine, control = arms[name], arms[plan.control.name]
    if name == plan.control.name:
        shown = {key: value for key, value in mine.items() if value is not None}
    else:
        shown = {key: value for key, value in mine.items() if control.get(key) != value}
    return [(key, str(value)) for key, value in shown.items()]
