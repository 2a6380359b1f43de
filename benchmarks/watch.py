"""What `flatline.watch` costs, and what it answers: the loops of tests/loops on the lab policy.

    python benchmarks/watch.py [--steps 12] [--wide]

Each loop trains twice, with a watch and without, a step each in turns and from the same random
state: they sample the same rollouts, and a busy machine is unfair to both alike. CPU seconds are
those of all threads, the one that writes included. Then the watched runs are diagnosed.

The lab policy has 0.24 million weights, so little is computed for each logit that a watch reads.
With `--wide` a random model of 5 million weights with the same tokens trains instead.
"""

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

import flatline
from flatline.hypotheses.base import ALARMS, Level
from flatline.training.memory import keep_freed_memory

sys.path.insert(0, str(Path(__file__).parents[1]))
LOOPS = ("notebook", "padded", "engine")
WARM_UP = 2
"""Steps at the beginning that are left out."""


class NobodyWatches:
    def rewards(self, *args: Any, **kwargs: Any) -> None:
        pass


class Side:
    """One run of a loop, step by step."""

    def __init__(self, loop: str, folder: Path | None, *, wide: bool) -> None:
        lab = importlib.import_module("tests.loops.lab")
        self.loop = importlib.import_module(f"tests.loops.{loop}")
        model, self.tokenizer = lab.load_policy()
        if wide:
            torch.manual_seed(0)
            sizes = {"hidden_size": 320, "intermediate_size": 960, "num_hidden_layers": 4}
            model = type(model)(type(model.config).from_dict({**model.config.to_dict(), **sizes}))
        self.model = self.loop.Bare(model) if loop == "engine" else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.watch: Any = NobodyWatches()
        if folder is not None:
            self.watch = flatline.watch(
                self.model, self.optimizer, folder, tokenizer=self.tokenizer
            )
        self.seconds: list[tuple[float, float]] = []
        torch.manual_seed(0)
        self.random = torch.get_rng_state()

    def step(self, rows: list[Any]) -> None:
        torch.set_rng_state(self.random)
        start = time.perf_counter(), time.process_time()
        self.loop.train(self.model, self.tokenizer, self.optimizer, rows, self.watch, steps=1)
        self.seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        self.random = torch.get_rng_state()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--wide", action="store_true", help="a larger model, of random weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    keep_freed_memory()
    print("| loop | CPU s/step | added by a watch | weights equal | alarms | answered |")
    print("|---|---|---|---|---|---|")
    answered: dict[str, set[str]] = {}
    for loop in LOOPS:
        with tempfile.TemporaryDirectory() as folder:
            row, answered[loop] = measure(loop, Path(folder) / "run", args.steps, args.wide)
        print(row)
    every, any_ = set.intersection(*answered.values()), set.union(*answered.values())
    print(f"\nAnswered in every loop ({len(every)}): {', '.join(sorted(every))}.")
    print(f"In some ({len(any_ - every)}): {', '.join(sorted(any_ - every))}.")


def measure(loop: str, folder: Path, steps: int, wide: bool) -> tuple[str, set[str]]:
    plain, watched = Side(loop, None, wide=wide), Side(loop, folder, wide=wide)
    rows = importlib.import_module("tests.loops.lab").problems(plain.tokenizer, 4 * steps)
    for step in range(steps):
        for side in (plain, watched):
            side.step(rows[4 * step : 4 * (step + 1)])
    watched.watch.close()
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    equal = all(torch.equal(a, b) for a, b in pairs)
    findings = flatline.diagnose(flatline.Trace.open(folder)).findings
    alarms = sum(finding.level in ALARMS for finding in findings)
    known = {one.hypothesis for one in findings if one.level is not Level.UNKNOWN}
    cpu = [np.array(side.seconds)[WARM_UP:, 1] for side in (plain, watched)]
    added = cpu[1] / cpu[0] - 1
    spread = 1.25 * 1.48 * np.median(np.abs(added - np.median(added))) / np.sqrt(len(added))
    cost = f"{np.median(cpu[0]):.3f} | {np.median(added):+.1%} ± {spread:.1%}"
    told = f"{alarms} | {len(known)} of {len(findings)} |"
    return f"| {loop} | {cost} | {'yes' if equal else 'NO'} | {told}", known


if __name__ == "__main__":
    main()
