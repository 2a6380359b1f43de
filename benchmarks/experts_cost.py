"""What experts that are chosen otherwise cost, beside a healthy run with the same experts.

    python benchmarks/experts_cost.py runs/experts
    flatline bench report runs/experts

`flatline bench` compares experts-rerouted (H62) with the lab's own policy, which has no experts and
plays better already before training. Here the reference is its healthy twin. Ten minutes.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.plan import Cell, Kind, chosen, full_plan
from bench.pool import How, run_cells

ALIKE = "experts-rerouted:23"
"""All bits of the router are kept: the sampler chooses as the trainer does."""


def cells() -> list[Cell]:
    (faulty,) = chosen(full_plan(), "experts-rerouted-s0")
    changes = {**faulty.changes, "fault": ALIKE}
    return [Cell(name=faulty.reference, kind=Kind.REFERENCE, changes=changes), faulty]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    out = parser.parse_args().folder
    run_cells(cells(), out, How(jobs=1), lambda cell, _: print(cell.name, flush=True))


if __name__ == "__main__":
    main()
