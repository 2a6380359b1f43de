"""Does a checkup still name what it named? Every planted fault, without any training.

    python benchmarks/fault_checkups.py [--task musique] [--only 'kl-*'] [--jobs 2]

Takes the checkup of seed 0 of each fault and strength of the benchmark and compares what it names
first with what the kept results (docs/benchmark/results.json) have.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[1]))
from bench.cell import CHECKUP
from bench.plan import Cell, Kind, full_plan
from bench.results import read_all

KEPT = Path(__file__).parent.parent / "docs" / "benchmark" / "results.json"


def causes(cell: Cell) -> list[str]:
    """What a checkup of the setup names, most likely cause first."""
    import torch
    from transformers.utils import logging

    from flatline.diagnosis.checkup import checkup
    from flatline.training.trainer import build

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with TemporaryDirectory() as folder:
        report = checkup(build(replace(cell.config(Path(folder)), eval_limit=8)))
    return [one.hypothesis for one in report.alarms]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="musique")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cells by name")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    kept = {one.cell.name: one.looks.get(CHECKUP) for one in read_all(KEPT)}
    cells = [
        cell
        for cell in full_plan()
        if cell.kind is Kind.FAULT
        and cell.task == args.task
        and cell.name.endswith("-s0")
        and fnmatch(cell.name, args.only)
        and kept.get(cell.name) is not None
    ]
    before = now = stages = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for cell, found in zip(cells, pool.map(causes, cells), strict=True):
            look = kept[cell.name]
            assert look is not None
            was, named = list(look.alarms[:1]), found[:1]
            before += bool(was) and was[0] in cell.wanted
            now += bool(named) and named[0] in cell.wanted
            stages += bool(named) and "H49" <= named[0] <= "H59"
            print(f"{cell.name}: {'/'.join(cell.wanted)}, kept {was or '-'}, now {found or '-'}")
    print(f"\n{len(cells)} faults and strengths: own hypothesis first {before} before, {now} now;")
    print(f"a stage of the specification first in {stages}")


if __name__ == "__main__":
    main()
