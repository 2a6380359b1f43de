"""Does a checkup cry wolf? One of every healthy setup of the benchmark, without any training.

    python benchmarks/healthy_checkups.py [--kind held-out] [--jobs 2]

`flatline bench` does the same and trains as well, which takes ten times as long. `calibration` are
the setups that thresholds were set on, `held-out` those that nobody looked at before.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flatline.bench.shares import exact_share

sys.path.append(str(Path(__file__).parents[1]))
from bench.plan import Cell, Kind, full_plan


def alarms(cell: Cell) -> list[str]:
    """What a checkup of the setup claims; nothing is healthy."""
    import torch
    from transformers.utils import logging

    from flatline.diagnosis.checkup import checkup
    from flatline.hypotheses.base import ALARMS
    from flatline.training.trainer import build

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with TemporaryDirectory() as folder:
        config = replace(cell.config(Path(folder)), eval_limit=8)
        report = checkup(build(config))
    return [f"{one.hypothesis}: {one.text}" for one in report.findings if one.level in ALARMS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=[Kind.CALIBRATION, Kind.HELD_OUT], default=Kind.HELD_OUT)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    cells = [cell for cell in full_plan() if cell.kind == args.kind]
    found = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for cell, said in zip(cells, pool.map(alarms, cells), strict=True):
            found += bool(said)
            print(f"{cell.name}: {'; '.join(said) or 'silent'}", flush=True)
    share = exact_share(found, len(cells))
    print(
        f"\n{found} of {len(cells)} healthy setups set off an alarm "
        f"(95 % interval {share['low']:.1%} to {share['high']:.1%})"
    )


if __name__ == "__main__":
    main()
