"""Charts of an experiment: every seed of every arm, and the effect against what matters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatline.experiment.outcome import estimate_from
from flatline.experiment.plan import Plan, Role
from flatline.report.charts import (
    MUTED,
    SERIES,
    Chart,
    Figure,
    error_bars,
    figure,
    label,
    level,
    plain,
)
from flatline.stats import Estimate, mean_of_units

COLORS = {Role.CONTROL: SERIES[0], Role.TREATED: SERIES[1], Role.NEGATIVE: MUTED}
ASIDE = 0.16
"""How far the mean of an arm stands beside its seeds."""

Values = Mapping[str, Mapping[int, float]]
"""Outcome by arm and seed, of the runs that finished."""


def arms_chart(plan: Plan, values: Values) -> Chart:
    """Every run as a point, matched seeds joined, each arm with its mean and interval."""
    made = figure([], x="", y=_outcome(plan))
    made["data"] += _joined(plan, values)
    for place, arm in enumerate(plan.arms):
        found = values.get(arm.name, {})
        if found:
            made["data"] += _arm(place, arm.name, COLORS[arm.role], found)
    made["layout"]["xaxis"] |= {
        "tickvals": list(range(len(plan.arms))),
        "ticktext": [f"{label(arm.name)}\n{arm.role.value}" for arm in plan.arms],
        "range": [-0.5, len(plan.arms) - 0.5],
    }
    made["layout"]["showlegend"] = False
    return Chart(
        id="arms",
        title="How did every run of every arm end?",
        lead="How to read it",
        healthy="matched seeds, joined by a line, all go one way; negative controls stay at 0.",
        figure=made,
        note="A point is a run. Next to the points: the mean over seeds with its 95 % interval.",
        by_step=False,
    )


def effect_chart(plan: Plan, values: Values, looks: Sequence[Mapping[str, Any]], arm: str) -> Chart:
    """Differences of matched seeds, and the interval at every look."""
    differences = effects(values, plan.control.name, arm)
    made = figure([], x="matched seeds", y="effect: treated minus control")
    places = np.arange(1, len(differences) + 1)
    made["data"].append(
        _dots(places, np.array(list(differences.values())), "one matched seed", SERIES[1])
        | {"text": [f"seed {seed}" for seed in differences]}
    )
    if looks:
        made["data"].append(_look_line(looks))
    over = (0.5, max(len(differences), 1) + 0.5)
    level(made, 0.0, "no effect", MUTED, over=over)
    matters = f"smallest effect that matters, {plan.smallest_effect:g}"
    level(made, plan.smallest_effect, matters, over=over)
    made["layout"]["xaxis"] |= {"dtick": 1}
    return Chart(
        id="effect",
        title="Is the effect there, and is it large enough to matter?",
        lead="How to read it",
        healthy="for a cause, the whole interval above 0 and the mean above the line that matters. "
        "Against it speaks a whole interval below that line.",
        figure=made,
        note="The interval of an interim check is wider than 95 %: it holds at all of them.",
        by_step=False,
    )


def effects(values: Values, control: str, treated: str) -> dict[int, float]:
    """Treated minus control by seed, where both have finished."""
    a, b = values.get(control, {}), values.get(treated, {})
    return {seed: b[seed] - a[seed] for seed in sorted(a) if seed in b}


def _joined(plan: Plan, values: Values) -> list[Figure]:
    """A line from the control to each treated arm, seed by seed."""
    before = values.get(plan.control.name, {})
    start = plan.arms.index(plan.control)
    x: list[float] = []
    y: list[float] = []
    for place, arm in enumerate(plan.arms):
        if arm.role is Role.TREATED:
            for seed, value in values.get(arm.name, {}).items():
                if seed in before:
                    x += [start, place, np.nan]
                    y += [before[seed], value, np.nan]
    line = {"color": MUTED, "width": 0.8}
    drawn = {"type": "scatter", "mode": "lines", "line": line, "hoverinfo": "skip"}
    return [{**drawn, "name": "matched seeds", "x": plain(np.array(x)), "y": plain(np.array(y))}]


def _arm(place: int, name: str, color: str, found: Mapping[int, float]) -> list[Figure]:
    value = np.array(list(found.values()))
    seeds = _dots(np.full(len(value), place), value, label(name), color)
    mean = mean_of_units(list(found.values()))
    beside = _dots(np.array([place + ASIDE]), np.array([mean.value]), "mean", color)
    beside["marker"] = {"color": color, "size": 10, "symbol": "diamond"}
    beside["error_y"] = error_bars([mean]) | {"color": color}
    return [seeds | {"text": [f"seed {seed}" for seed in found]}, beside]


def _look_line(looks: Sequence[Mapping[str, Any]]) -> Figure:
    estimates: list[Estimate] = [estimate_from(look["effect"]) for look in looks]
    x = np.array([look["seeds"] for look in looks], dtype=float) + ASIDE
    line = _dots(
        x, np.array([one.value for one in estimates]), "mean at an interim check", SERIES[0]
    )
    line["marker"] = {"color": SERIES[0], "size": 10, "symbol": "diamond"}
    return line | {"error_y": error_bars(estimates) | {"color": SERIES[0]}}


def _dots(x: np.ndarray, y: np.ndarray, name: str, color: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": plain(x),
        "y": plain(y),
        "marker": {"color": color, "size": 8},
    }


def _outcome(plan: Plan) -> str:
    words = {"heldout_reward": "gain of the held-out reward", "reward": "gain of the reward"}
    return words.get(plan.outcome, label(plan.outcome))
