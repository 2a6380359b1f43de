"""Figures as plain data: what a chart says, and the JSON that `plots.js` draws.

Colours are readable on a light and on a dark page. Numbers are cut to five digits: more cannot be
seen. The shape is a small part of Plotly's, whose words many know.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flatline.stats import Estimate
from flatline.text import shortened, visible

Figure = dict[str, Any]
"""`data` and `layout`, as `plots.js` reads them."""

SERIES = ("#2f7fd1", "#d9772b", "#1f9d80", "#b65fc4", "#c24a4a", "#8a8f2a", "#5b6ee1", "#7d828a")
"""Colours of lines, in the order in which they are given out."""
MUTED, ALARM = "#7d828a", "#d04a3a"
LIMIT = "currentColor"
"""Of thresholds: the ink of the page, darker or brighter than any line of data, so that nobody has
to tell red from green."""
STEP = "optimizer step"
"""What most horizontal axes count."""
MOST_POINTS = 2000
"""Points of one line; a longer run is thinned."""
TALL = 400
"""Pixels from which a chart takes the whole width, so that no hole is left beside it."""
DECADES = 100.0
"""From here on between smallest and largest, an axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure with what is needed to read it."""

    id: str
    """Anchor in the page."""
    title: str
    """A question or a statement."""
    healthy: str
    """What a healthy run shows."""
    figure: Figure
    """For `plots.js`."""
    lead: str = "In a healthy run"
    """What stands in front of `healthy`."""
    note: str = ""
    """How the numbers were made, where that is not plain: sampling, binning, what is left out."""
    findings: tuple[str, ...] = ()
    """Codes of alarms that point here."""
    by_step: bool = True
    """Whether the horizontal axis counts optimizer steps, so that a step can be marked."""

    @property
    def tall(self) -> bool:
        """Whether it is much higher than others."""
        return bool(self.figure["layout"].get("height", 0) > TALL)


def chart_data(charts: Sequence[Chart]) -> dict[str, Any]:
    """What `flatline.js` draws from."""
    return {chart.id: chart.figure for chart in charts}


def figure(data: Sequence[Mapping[str, Any]], *, y: str, x: str = STEP) -> Figure:
    """Lines and points over one pair of axes."""
    whole = {"dtick": 1} if x == STEP else {}  # there is no step between two steps
    return {
        "data": [dict(one) for one in data],
        "layout": {
            "xaxis": {"title": {"text": x}, **whole},
            "yaxis": {"title": {"text": y}},
            "shapes": [],
            "annotations": [],
        },
    }


def points(x: np.ndarray, y: np.ndarray, name: str, color: str = SERIES[0], **more: Any) -> Figure:
    """Raw points, joined by a thin line: nothing between them was measured."""
    kept = thinned(y)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(kept) <= 120 else "lines",
        "name": name,
        "x": plain(x[kept]),
        "y": plain(y[kept]),
        "line": {"color": color, "width": 1.2},
        "marker": {"color": color, "size": 5},
        **more,
    }


def band(x: np.ndarray, low: np.ndarray, high: np.ndarray, name: str, color: str) -> Figure:
    """The area between two lines. Points without an interval end it and begin another."""
    known = np.isfinite(low) & np.isfinite(high)
    kept = np.flatnonzero(known)
    kept = kept[thinned(high[kept])]
    there, back = x[kept], x[kept][::-1]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": plain(np.concatenate([there, back])),
        "y": plain(np.concatenate([high[kept], low[kept][::-1]])),
        "fill": "toself",
        "fillcolor": see_through(color),
        "line": {"width": 0, "color": color},
        "hoverinfo": "skip",
    }


def level(
    made: Figure,
    at: float,
    text: str,
    color: str = LIMIT,
    *,
    over: tuple[float, float] | None = None,
) -> None:
    """A horizontal line that the legend names: a threshold or a limit, dashed as no data is. A
    label would hide data. `MUTED` is for what is only there for comparison, such as 0."""
    drawn = [place for line in made["data"] for place in line["x"] if place is not None]
    x = list(over or drawn)
    if x and math.isfinite(at):
        made["data"].append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": text,
                "x": [min(x), max(x)],
                "y": [at, at],
                "line": {"color": color, "width": 1.5, "dash": "dash" if color == LIMIT else "dot"},
                "hoverinfo": "name",
            }
        )


def marked(chart: Chart, marks: Mapping[str, Sequence[int]]) -> Chart:
    """The chart with the findings that point to it, and the steps that their evidence names."""
    if not marks:
        return chart
    made = {**chart.figure, "layout": {**chart.figure["layout"]}}
    made["layout"]["shapes"] = list(made["layout"]["shapes"])
    made["layout"]["annotations"] = list(made["layout"]["annotations"])
    if chart.by_step:
        for code, steps in marks.items():
            for step in sorted(set(steps)):
                _mark_step(made["layout"], code, step)
    return replace(chart, figure=made, findings=tuple(marks))


def logarithmic(made: Figure, values: np.ndarray, *, always: bool = False) -> bool:
    """Make the vertical axis logarithmic where the values span decades; whether it was done."""
    values = np.concatenate([values, *(_ends(line) for line in made["data"] if "error_y" in line)])
    known = values[np.isfinite(values) & (values > 0)]
    if not len(known) or (known.max() / known.min() < DECADES and not always):
        return False
    low, high = math.log10(known.min()), math.log10(known.max())
    made["layout"]["yaxis"] |= {
        "type": "log",
        "range": [low - 0.3, high + 0.3],
        # A label at powers of ten; the default writes 2 and 5 in between, which nobody reads.
        "dtick": max(1, round((high - low) / 6)),
        "exponentformat": "e",
    }
    for line in made["data"]:
        line["y"] = [y if y is not None and y > 0 else None for y in line["y"]]
    return True


def error_bars(estimates: Sequence[Estimate]) -> Figure:
    """Intervals of points, for `error_y`; one that is open or unknown has no bar."""
    up = [one.high - one.value if math.isfinite(one.high) else 0.0 for one in estimates]
    down = [one.value - one.low if math.isfinite(one.low) else 0.0 for one in estimates]
    return {
        "type": "data",
        "symmetric": False,
        "array": plain(np.array(up)),
        "arrayminus": plain(np.array(down)),
        "thickness": 1.2,
        "width": 4,
    }


def _ends(line: Figure) -> np.ndarray:
    """Where the intervals of a line end."""
    middle, up, down = (
        np.array(part, dtype=float)
        for part in (line["y"], line["error_y"]["array"], line["error_y"]["arrayminus"])
    )
    return np.concatenate([middle + up, middle - down])


def thinned(values: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Which points are drawn: all, or evenly chosen ones with the largest and the smallest."""
    if len(values) <= most:
        return np.arange(len(values))
    even = np.linspace(0, len(values) - 1, most).round().astype(int)
    if not np.isfinite(values).any():
        return np.unique(even)
    return np.unique(np.concatenate([even, [np.nanargmin(values), np.nanargmax(values)]]))


def plain(values: np.ndarray) -> list[float | None]:
    """For JSON: five digits, None where there is no number."""
    return [_cut(value) for value in np.asarray(values, dtype=float).tolist()]


def label(text: str) -> str:
    """A name from a trace: short, and nothing in it unseen."""
    return visible(shortened(text, limit=60))


def see_through(color: str, share: float = 0.18) -> str:
    """A colour of `SERIES` as the filling of an area."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def _cut(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e9 else float(f"{value:.5g}")


def _mark_step(layout: Figure, code: str, step: int) -> None:
    line = {"color": ALARM, "width": 1, "dash": "dash"}
    place = {"x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1}
    layout["shapes"].append({"type": "line", **place, "line": line})
    above = sum(one["x"] == step for one in layout["annotations"])
    layout["annotations"].append(
        {
            "x": step,
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
            "yshift": 12 * above,
            "text": code,
            "showarrow": False,
            "font": {"color": ALARM, "size": 11},
        }
    )
