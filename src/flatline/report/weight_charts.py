"""Charts of the trained tensors: which of them get a gradient, and which of them move."""

import math
import re

import numpy as np

from flatline.errors import NotRecorded
from flatline.report.charts import Chart, Figure, figure, label, plain
from flatline.report.series import Run, spans
from flatline.trace import Trace

MOST_ROWS = 40
"""Rows of a heat map; with more tensors, those of a layer are taken together."""
MOST_COLUMNS = 120
"""Steps of a heat map."""

_LAYER = re.compile(r"\b(?:layers?|blocks?|h)\.(\d+)\b")
_NOISE = re.compile(r"base_model\.model\.|\bmodel\.|\.default\b|\.weight$|_fsdp_wrapped_module\.")


def updates(run: Run) -> Chart:
    """How much each step changes each tensor, of its own size."""
    trace = run.trace
    norm, moved = trace.weights["norm"], trace.weights["update_norm"]
    share = np.divide(moved, norm, out=np.full(len(norm), np.nan), where=norm > 0)
    return Chart(
        id="updates",
        title="Do all trained tensors move?",
        healthy="every row has colour at every step, usually 1e-4 to 1e-1 of its size. A blank row "
        "never moves; B of a LoRA starts at 0, so its first shares are large.",
        figure=_heat_map(trace, share, "update / norm"),
        note=_note(trace) if np.nanmax(moved) > 0 else f"Every update is 0. {_note(trace)}",
    )


def gradients(run: Run) -> Chart:
    """The gradient of each tensor."""
    trace = run.trace
    return Chart(
        id="layer-gradients",
        title="Does the gradient reach every layer?",
        healthy="every row has colour. A of a LoRA has no gradient at step 1, as B is still 0.",
        figure=_heat_map(trace, trace.weights["grad_norm"], "norm of the gradient"),
        note=_note(trace),
    )


def _heat_map(trace: Trace, values: np.ndarray, what: str) -> Figure:
    rows, index = _rows(trace)
    steps = _steps(trace)
    grid = _largest(values, index, trace.weights["step"], steps, len(rows))
    if not np.isfinite(grid).any():
        raise NotRecorded("weights.update_norm")
    shown = np.log10(np.where(grid > 0, grid, np.nan))
    low, high = spans(shown)
    ticks = np.arange(math.floor(low), math.ceil(high) + 1) if math.isfinite(low) else np.zeros(1)
    heat = {
        "type": "heatmap",
        "x": plain(steps),
        "y": [label(row) for row in rows],
        "z": [plain(row) for row in shown],
        "customdata": [plain(row) for row in grid],
        "hovertemplate": f"%{{y}}\nstep %{{x}}\n{what} %{{customdata}}",
        "colorscale": "Viridis",
        "zmin": float(ticks[0]),
        "zmax": float(ticks[-1]),
        "colorbar": {
            "ticktext": [f"1e{int(tick)}" for tick in ticks],
            "title": {"text": what},
        },
    }
    made = figure([heat], y="")
    made["layout"]["height"] = max(260, 90 + (16 if len(rows) <= MOST_ROWS else 8) * len(rows))
    return made


def _rows(trace: Trace) -> tuple[list[str], np.ndarray]:
    """The rows of the map, and the row of every entry of the table."""
    names = trace.weights["name"].astype(str)
    known, inverse = np.unique(names, return_inverse=True)
    shown = [short_name(str(name)) for name in known]
    for sides in (True, False):
        if len(set(shown)) > MOST_ROWS:
            shown = [_layer(str(name), sides=sides) for name in known]
    rows = sorted(set(shown), key=_natural)
    return rows, np.array([rows.index(name) for name in shown])[inverse]


def _steps(trace: Trace) -> np.ndarray:
    steps = np.unique(trace.weights["step"])
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), MOST_COLUMNS)).round().astype(int)
    return np.asarray(steps[np.unique(chosen)])


def _largest(
    values: np.ndarray, row: np.ndarray, step: np.ndarray, steps: np.ndarray, rows: int
) -> np.ndarray:
    """The largest value of every row and shown step; NaN where there is none."""
    column = np.searchsorted(steps, step)
    column = np.minimum(column, len(steps) - 1)
    kept = (steps[column] == step) & np.isfinite(values)
    grid = np.full((rows, len(steps)), -np.inf)
    np.maximum.at(grid, (row[kept], column[kept]), values[kept])
    return np.where(np.isfinite(grid), grid, np.nan)


def short_name(name: str) -> str:
    """`base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight` without what repeats."""
    return _NOISE.sub("", name) or name


def _layer(name: str, *, sides: bool) -> str:
    """All tensors of a layer under one name; A and B of a LoRA apart where asked."""
    found = _LAYER.search(name)
    both = ("lora_A", "lora_B") if sides else ()
    side = next((f" {side}" for side in both if side in name), "")
    return f"layer {found.group(1)}{side}" if found else f"outside the layers{side}"


def _natural(name: str) -> list[tuple[int, str]]:
    """`layer 2` before `layer 10`."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


def _note(trace: Trace) -> str:
    tensors = len(np.unique(trace.weights["name"].astype(str)))
    steps = len(np.unique(trace.weights["step"]))
    told = "; the largest of each layer" if tensors > MOST_ROWS else ""
    few = f"; {MOST_COLUMNS} of {steps:,} steps, evenly chosen" if steps > MOST_COLUMNS else ""
    return f"{tensors} tensors{told}{few}; logarithmic colours."
