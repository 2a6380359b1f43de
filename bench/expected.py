"""How long cells take, from those that are finished, else from what two cores were seen to need."""

from collections.abc import Iterable
from pathlib import Path

from bench.cell import RESULT_FILE
from bench.plan import Cell
from bench.pool import CELLS, read_result

BEFORE, PER_STEP = 45.0, 3.5
"""Seconds of imports, checkup and evaluations, and of one step."""


def seconds_of(cells: Iterable[Cell], out: Path) -> list[float]:
    """Seconds of each cell, run alone on one core."""
    pace = _pace(out)
    return [pace * _usual(cell.steps) for cell in cells]


def _usual(steps: int) -> float:
    return BEFORE + PER_STEP * steps


def _pace(out: Path) -> float:
    """How much slower than usual this machine is."""
    results = [read_result(path) for path in (out / CELLS).glob(f"*/{RESULT_FILE}")]
    timed = [one for one in results if "seconds" in one]
    if not timed:
        return 1.0
    usual = sum(_usual(Cell.from_json(one["cell"]).steps) for one in timed)
    return float(sum(one["seconds"] for one in timed) / usual)
