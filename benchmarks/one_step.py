"""How far does one step move a healthy policy? What H24 compares, with and without its interval.

    python benchmarks/one_step.py [--kind calibration] [--scales 1,10,30]
    python benchmarks/one_step.py --stock 12     # stock TRL on the lab policy, so many seeds

Prints the KL per token of one step, and what it certainly is at least, at multiples of the rate.
The second needs jmespath, with which TRL reads calls.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from bench.plan import Kind, full_plan
from flatline.hypotheses.h24_learning_rate import HUGE_KL, LARGE_KL

STOCK = ("plain", "short", "a tool", "a tool, warm")


def measured(trainer: Any, scales: list[float]) -> list[tuple[float, float]]:
    """KL and least KL of a step at each multiple of the rate."""
    from flatline.diagnosis.checkup import subject_of
    from flatline.live.trl.begun import once

    subject = subject_of(trainer)

    def look() -> list[tuple[float, float]]:
        with subject.standing_still():
            steps = [subject.one_step(scale) for scale in scales]
        return [(step.kl, step.kl_at_least) for step in steps]

    return once(subject.trainer, look)


def lab_trainers(kind: str, folder: Path) -> Iterator[tuple[str, Any]]:
    from flatline.training.trainer import build

    for cell in full_plan():
        if cell.kind == kind:
            yield kind, build(replace(cell.config(folder / cell.name), eval_limit=8))


def stock_trainers(seeds: int, folder: Path) -> Iterator[tuple[str, Any]]:
    from museum import lab
    from museum.exhibits import trl_overlong_tool_result as overlong
    from museum.exhibits import trl_retokenised_tools as tools
    from transformers import set_seed

    for seed in range(seeds):
        for name in STOCK:
            parts = tools.parts() if "tool" in name else lab.parts()
            set_seed(seed)
            given: dict[str, Any] = {"seed": seed}
            if name == "a tool":
                yield name, tools.trainer(folder, parts, temperature=1.5, **given)
                continue
            given |= {} if name == "plain" else {"temperature": 1.2}
            if name == "a tool, warm":
                given["rewards"] = [overlong.wordy]
                yield name, tools.trainer(folder, parts, overlong.retrieve_documents, **given)
                continue
            given["rewards"] = [lab.short if name == "short" else lab.right]
            yield name, lab.trainer(folder, parts=parts, **given)


def main() -> None:
    import torch
    from transformers.utils import logging

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=[Kind.CALIBRATION, Kind.HELD_OUT], default="calibration")
    parser.add_argument("--scales", default="1,10,30")
    parser.add_argument("--stock", type=int, default=0, metavar="SEEDS")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    scales = [float(one) for one in args.scales.split(",")]
    found = defaultdict(list)
    with TemporaryDirectory() as folder:
        given = (args.stock or args.kind, Path(folder))
        for name, trainer in (stock_trainers if args.stock else lab_trainers)(*given):
            for scale, step in zip(scales, measured(trainer, scales), strict=True):
                found[name, scale].append(step)
    print("| setups | rate, times | steps | KL | above 0.2 | above 1 | at least | 0.2 | 1 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (name, scale), steps in found.items():
        columns = [_column(values) for values in zip(*steps, strict=True)]
        print(f"| {name} | {scale:g} | {len(steps)} | {' | '.join(columns)} |", flush=True)


def _column(values: tuple[float, ...]) -> str:
    above = [sum(value > limit for value in values) for limit in (LARGE_KL, HUGE_KL)]
    return f"{min(values):.2g} to {max(values):.2g} | {above[0]} | {above[1]}"


if __name__ == "__main__":
    main()
