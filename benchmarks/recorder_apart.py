"""What recording costs when every run has a process of its own, as trainings have.

    python benchmarks/recorder_apart.py [--pairs 6] [--steps 14] [--jobs 1]

`recorder.py` trains in turns, in threads of one process, which share one heap: how lucky its
allocator is decides as much as the recorder does. Here a plain and a recorded run train the same
steps one after the other on the same core, in turns plain first and recorded first, and what is
compared is the median step of a process. n counts pairs of processes. With `--jobs` several pairs
train at once, each on a core of its own (Linux).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

SIDES = ("plain", "flatline")
WARM_UP = 2
"""Steps at the beginning that are left out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(train(args.side, args.steps)))
        return
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[: args.jobs]:
        cores.put(core)
    with ThreadPoolExecutor(args.jobs) as pool:
        pairs = list(pool.map(lambda n: pair(n, args.steps, cores), range(args.pairs)))
    show(pairs)


def pair(number: int, steps: int, cores: "Queue[int]") -> dict[str, dict[str, float]]:
    """One run of each side on one core, the other side first than in the pair before."""
    core = cores.get()
    try:
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        return {side: run(side, steps, core) for side in order}
    finally:
        cores.put(core)


def run(side: str, steps: int, core: int) -> dict[str, float]:
    words = [sys.executable, __file__, "--side", side, "--steps", str(steps)]
    done = subprocess.run(
        words,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def train(side: str, steps: int) -> dict[str, float]:
    """Train in this process; the median step after the first ones."""
    import torch
    from transformers import PrinterCallback, ProgressCallback
    from transformers.utils import logging

    import flatline
    from flatline.config import RunConfig
    from flatline.training.memory import keep_freed_memory
    from flatline.training.trainer import build

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    keep_freed_memory()  # as `flatline train` does
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = RunConfig(max_steps=steps, eval_limit=0, output_dir=str(folder / "out"))
        trainer = build(config).trainer
        for kind in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(kind)
        if side == "flatline":
            flatline.attach(trainer, folder / "trace")
        clock = step_clock()
        trainer.add_callback(clock)
        trainer.train()
    wall, cpu, faults = np.median(np.diff(np.array(clock.marks), axis=0)[WARM_UP:], axis=0)
    return {"wall": float(wall), "cpu": float(cpu), "faults": float(faults)}


def step_clock() -> Any:
    """Marks the beginning of every step, after all that a recorder does there."""
    import time

    from transformers import TrainerCallback

    class StepClock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.marks: list[tuple[float, float, float]] = []

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            self.marks.append((time.perf_counter(), time.process_time(), faults))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.on_step_begin(args, state, control)

    return StepClock()


def show(pairs: Sequence[dict[str, dict[str, float]]]) -> None:
    print("| run | wall s/step | CPU s/step | page faults/step |\n|---|---|---|---|")
    for side in SIDES:
        means = {key: np.median([one[side][key] for one in pairs]) for key in pairs[0][side]}
        print(f"| {side} | {means['wall']:.3f} | {means['cpu']:.3f} | {means['faults']:.0f} |")
    for key, name in (("wall", "Wall"), ("cpu", "CPU")):
        shares = np.array([one["flatline"][key] / one["plain"][key] - 1 for one in pairs])
        error = shares.std(ddof=1) / np.sqrt(len(shares)) if len(shares) > 1 else float("nan")
        each = ", ".join(f"{share:+.1%}" for share in shares)
        print(f"\n{name} overhead: mean {shares.mean():+.2%} ± {error:.2%} (standard error, "
              f"{len(shares)} pairs), median {np.median(shares):+.2%}: {each}")  # fmt: skip


if __name__ == "__main__":
    main()
