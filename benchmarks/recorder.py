"""What recording costs: a healthy lab run with every token recorded, beside the same run without.

    python benchmarks/recorder.py [--steps 20] [--full] [--config run.toml]

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
from flatline.config import RunConfig, load_config
from flatline.trace.attach_hooks import Guard
from flatline.trace.writer import Writer
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
        self._mine.acquire()
        self._start = now()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end()

    def _end(self) -> None:
        if self._start is not None:
            wall, cpu = now()
            self.seconds.append((wall - self._start[0], cpu - self._start[1]))
            self._next.release()


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="train all weights, not adapters")
    parser.add_argument("--config", type=Path, help="another run than the lab's (TOML)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        changes = {"max_steps": args.steps, "eval_limit": 0, "output_dir": str(folder / "out")}
        if args.config:
            config = load_config(args.config, **changes)
        else:
            config = RunConfig(peft=not args.full, **changes)
        own = OwnWork()
        seconds = measure(config, recorders(), folder)
        kept = {name: sum(f.stat().st_size for f in (folder / name).glob("**/*") if f.is_file())
                for name in seconds}  # fmt: skip
    rollouts = args.steps * config.batch_size * config.gradient_accumulation_steps
    show(seconds, kept, rollouts)
    share = own.cpu / args.steps / float(np.median(seconds["plain"][:, 1]))
    print(
        f"flatline's own code: {1e3 * own.cpu / args.steps:.1f} ms of CPU per step "
        f"({share:.2%} of a plain step), {1e3 * own.thread / args.steps:.1f} ms of it in its thread"
    )


class OwnWork:
    """CPU seconds inside the guard that all of the recording runs under, and in its thread.

    Where a step varies by more than recording costs, this tells what the difference cannot.
    """

    def __init__(self) -> None:
        self.cpu = self.thread = 0.0
        for owner, name in ((Guard, "__call__"), (Writer, "_append"), (Writer, "_flush")):
            self._count(owner, name)

    def _count(self, owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return inner(*args, **kwargs)
            finally:
                spent = time.thread_time() - start
                self.cpu += spent
                self.thread += spent if owner is Writer else 0.0

        setattr(owner, name, counted)


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
    turns = [threading.Semaphore(int(i == 0)) for i in range(len(sides))]
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
    spread = 1.48 * np.median(np.abs(share - np.median(share)))  # a busy machine makes outliers
    error = 1.25 * spread / np.sqrt(len(share))
    return f"{np.median(share):+.1%} ± {error:.1%}"


if __name__ == "__main__":
    main()
