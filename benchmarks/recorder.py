"""What recording costs: a healthy lab run with every token recorded, beside the same run without.

    python benchmarks/recorder.py [--steps 20] [--full]

The runs train in turns, one optimizer step each, in one process: they sample the same rollouts,
and a busy machine is unfair to all alike. A step counts from its beginning to the beginning of the
next, so all that a recorder does in between is in it; CPU seconds are those of all threads, a
recorder's own included. rlprobe is measured as well where it can be imported (`pip install
rlprobe`, or a folder on PYTHONPATH); it keeps texts and scalars, no tokens.
"""

import argparse
import importlib.util
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils import logging

import flatline
from flatline.config import RunConfig
from flatline.training.trainer import build

WARM_UP = 2
"""Steps at the beginning that are left out."""


class TakeTurns(TrainerCallback):
    """Lets one run train a step while the others wait."""

    def __init__(self, mine: threading.Semaphore, next_one: threading.Semaphore) -> None:
        self.seconds: list[tuple[float, float]] = []
        """Wall and CPU time of each step."""
        self._mine, self._next = mine, next_one
        self._start: tuple[float, float] | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end()
        self._next.release()
        self._mine.acquire()
        self._start = now()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end()
        self._next.release()

    def _end(self) -> None:
        if self._start is not None:
            wall, cpu = now()
            self.seconds.append((wall - self._start[0], cpu - self._start[1]))


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="train all weights, not adapters")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = RunConfig(
            max_steps=args.steps, eval_limit=0, peft=not args.full, output_dir=str(folder / "out")
        )
        seconds = measure(config, recorders(), folder)
        kept = {name: sum(f.stat().st_size for f in (folder / name).glob("**/*") if f.is_file())
                for name in seconds}  # fmt: skip
    show(seconds, kept, args.steps * config.batch_size)


def recorders() -> dict[str, Callable[[Any, Path], object] | None]:
    sides: dict[str, Callable[[Any, Path], object] | None] = {
        "plain": None,
        "flatline": flatline.attach,
    }
    if importlib.util.find_spec("rlprobe"):
        from rlprobe.integrations.trl import attach

        sides["rlprobe"] = attach
    return sides


def measure(
    config: RunConfig, sides: dict[str, Callable[[Any, Path], object] | None], folder: Path
) -> dict[str, np.ndarray]:
    """Wall and CPU seconds of every step of every side."""
    turns = [threading.Semaphore(0) for _ in sides]
    takers, threads = {}, []
    for i, (name, attach) in enumerate(sides.items()):
        trainer = build(config).trainer
        for kind in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(kind)
        takers[name] = TakeTurns(turns[i], turns[(i + 1) % len(turns)])
        if attach is not None:
            attach(trainer, folder / name)
        # After the recorder, so that what it does when a step begins is in the step before.
        trainer.add_callback(takers[name])
        threads.append(threading.Thread(target=trainer.train))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: np.array(taker.seconds[WARM_UP:]) for name, taker in takers.items()}


def show(seconds: dict[str, np.ndarray], kept: dict[str, int], rollouts: int) -> None:
    print(
        "| recorder | wall s/step | CPU s/step | wall overhead | CPU overhead | bytes/rollout |\n"
        "|---|---|---|---|---|---|"
    )
    for name, values in seconds.items():
        wall, cpu = np.median(values, axis=0)
        costs = " | ".join(overhead(values[:, i], seconds["plain"][:, i]) for i in (0, 1))
        print(f"| {name} | {wall:.3f} | {cpu:.3f} | {costs} | {kept[name] / rollouts:.0f} |")


def overhead(values: np.ndarray, plain: np.ndarray) -> str:
    """Median over steps of what is added, with its standard error."""
    share = values / plain - 1
    error = 1.25 * share.std(ddof=1) / np.sqrt(len(share))
    return f"{np.median(share):+.1%} ± {error:.1%}"


if __name__ == "__main__":
    main()
