"""What recording costs: a healthy lab run with every token recorded, beside the same run without.

    python benchmarks/recorder.py [--steps 20] [--full] [--config run.toml] [--split] [--alone]
        [--alarms]

The runs train in turns, one optimizer step each, in one process: they sample the same rollouts,
and a busy machine is unfair to all alike. A step counts from its beginning to the beginning of the
next, so all that a recorder does in between is in it; CPU seconds are those of all threads, a
recorder's own included. rlprobe is measured as well where it can be imported (`pip install
rlprobe`, or a folder on PYTHONPATH); it keeps texts and scalars, no tokens. As in `flatline train`
freed memory stays with the process; `--stock-malloc` leaves the C library at its defaults.

Below the comparison stands flatline's own time by part: what the training had to wait for, and what
its thread did beside the training. With `--split` the device is waited for before each part that
the training waits for, so that work of the trainer's that was still to be done there is told apart;
the comparison is then no longer fair. `--alone` trains the recorded run only: flatline's own time,
against steps that hold it, where a second model is too dear and steps vary by more than it.

`--alarms` trains a third run, recorded and with `flatline.Alarms`, and prints all of its steps over
all of the recorded run's: looks are not at every step, so a median would not see them. The parts
below are then those of two recorded runs, but for the alarms.
"""

import argparse
import importlib.util
import resource
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
from flatline.alarms import earned
from flatline.alarms.training import Alarms
from flatline.config import RunConfig, load_config
from flatline.live.hooks import Guard
from flatline.live.texts import Texts, Vocabulary
from flatline.live.transfer import Transfer
from flatline.live.trl.recorder import scribe
from flatline.live.trl.recorder.steps import PassFacts
from flatline.live.weights import Census, Looked
from flatline.trace import writer
from flatline.trace.files import StreamFile
from flatline.trace.writer import Writer
from flatline.training.memory import keep_freed_memory
from flatline.training.trainer import build

WARM_UP = 2
"""Steps at the beginning that are left out."""


class TakeTurns(TrainerCallback):
    """Lets one run train a step while the others wait."""

    def __init__(self, mine: threading.Semaphore, next_one: threading.Semaphore) -> None:
        self.seconds: list[tuple[float, float, float]] = []
        """Wall time, CPU time and page faults of each step."""
        self._mine, self._next = mine, next_one
        self._start: tuple[float, float, float] | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end()
        self._mine.acquire()
        self._start = now()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end()

    def _end(self) -> None:
        if self._start is not None:
            wall, cpu, faults = (end - start for end, start in zip(now(), self._start, strict=True))
            self.seconds.append((wall, cpu, faults))
            self._next.release()


def now() -> tuple[float, float, float]:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return time.perf_counter(), time.process_time(), faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="train all weights, not adapters")
    parser.add_argument("--config", type=Path, help="another run than the lab's (TOML)")
    parser.add_argument("--split", action="store_true", help="wait for the device before timing")
    parser.add_argument("--alone", action="store_true", help="no run to compare with")
    parser.add_argument("--alarms", action="store_true", help="a third run, with alarms")
    parser.add_argument("--stock-malloc", action="store_true", help="the C library's defaults")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    if not args.stock_malloc:
        keep_freed_memory()  # as `flatline train` does; else the allocator's luck is measured
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        changes = {"max_steps": args.steps, "eval_limit": 0, "output_dir": str(folder / "out")}
        if args.config:
            config = load_config(args.config, **changes)
        else:
            config = RunConfig(peft=not args.full, **changes)
        own = OwnTime(split=args.split)
        seconds = measure(config, recorders(alone=args.alone, alarms=args.alarms), folder)
        kept = {name: sum(f.stat().st_size for f in (folder / name).glob("**/*") if f.is_file())
                for name in seconds}  # fmt: skip
    rollouts = args.steps * config.batch_size * config.gradient_accumulation_steps
    if not args.alone:
        show(seconds, kept, rollouts)
    beside = "flatline" if args.alone else "plain"
    own.show(args.steps, float(np.median(seconds[beside][:, 0])), beside)


PARTS = (
    (Guard, "__call__", "the rest"),
    (Alarms, "_look", "alarms"),
    (Transfer, "__init__", "sending tensors to the host"),
    (Census, "before_step", "weights"),
    (Census, "after_step", "weights"),
    (Writer, "end_step", "waiting until the step is in the file"),
    (Transfer, "arrived", "waiting for the device"),
    (Texts, "learn", "decoding"),
    (Vocabulary, "rows", "decoding"),
    (scribe, "hold", "rows"),
    (scribe, "rollout_rows", "rows"),
    (scribe, "token_row", "rows"),
    (PassFacts, "add", "rows"),
    (Looked, "rows", "rows"),
    (writer, "to_batch", "Arrow"),
    (StreamFile, "append", "files"),
    (Writer, "_flush", "files"),
)
"""Where the recording spends its time. Each is told without those that it calls."""
ALARMED = "flatline with alarms"
DEVICE = "work of the trainer's on the device"


class OwnTime:
    """Wall and CPU seconds of every part, in the training's threads and in flatline's.

    Where a step varies by more than recording costs, this tells what the difference cannot.
    """

    def __init__(self, *, split: bool) -> None:
        self.spent: dict[tuple[bool, str], np.ndarray] = {}
        """By whether it is in flatline's thread, and by part."""
        self._split = split and torch.cuda.is_available()
        self._stack = threading.local()
        for owner, name, part in PARTS:
            self._listen(owner, name, part)

    def _listen(self, owner: Any, name: str, part: str) -> None:
        inner = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch(part, opening=True)
            try:
                return inner(*args, **kwargs)
            finally:
                self._switch(part, opening=False)

        setattr(owner, name, timed)

    def _switch(self, part: str, *, opening: bool) -> None:
        """The clock stops for what was running and starts for what comes."""
        here = self._stack.__dict__
        running, mine = here.setdefault("running", []), is_ours()
        now = np.array([time.perf_counter(), time.thread_time()])
        if running:
            key = (mine, running[-1])
            self.spent[key] = self.spent.get(key, np.zeros(2)) + now - here["since"]
        if opening and not running and self._split and not mine:
            torch.cuda.synchronize()
            then = np.array([time.perf_counter(), time.thread_time()])
            self.spent[False, DEVICE] = self.spent.get((False, DEVICE), np.zeros(2)) + then - now
        running.append(part) if opening else running.pop()
        here["since"] = np.array([time.perf_counter(), time.thread_time()])

    def show(self, steps: int, seconds: float, beside: str) -> None:
        print(f"\n| in | part | wall ms/step | CPU ms/step | of {seconds:.3f} s, a {beside} step |")
        print("|---|---|---|---|---|")
        for mine, thread in ((False, "the training"), (True, "flatline's thread")):
            rows = [(part, values) for (own, part), values in self.spent.items() if own is mine]
            ours = [values for part, values in rows if part != DEVICE]
            for part, values in [*rows, ("all that is flatline's", sum(ours, np.zeros(2)))]:
                wall, cpu = 1e3 * values / steps
                share = wall / 10 / seconds
                print(f"| {thread} | {part} | {wall:.1f} | {cpu:.1f} | {share:.2f} % |")


def is_ours() -> bool:
    return threading.current_thread().name == "flatline-trace"


def recorders(*, alone: bool, alarms: bool) -> dict[str, Callable[[Any, Path], object] | None]:
    if alone:
        return {"flatline": flatline.attach}
    sides: dict[str, Callable[[Any, Path], object] | None] = {
        "plain": None,
        "flatline": flatline.attach,
    }
    if alarms:
        sides[ALARMED] = lambda trainer, folder: flatline.attach(trainer, folder, alarms=Alarms())
    if importlib.util.find_spec("rlprobe"):
        from rlprobe.integrations.trl import attach

        sides["rlprobe"] = attach
    return sides


def measure(
    config: RunConfig, sides: dict[str, Callable[[Any, Path], object] | None], folder: Path
) -> dict[str, np.ndarray]:
    """Wall and CPU seconds of every step of every side."""
    # The clock by which alarms earn their looks runs while the others have their turns, too.
    earned.SHARE /= len(sides)
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
        "| recorder | wall s/step | CPU s/step | wall overhead | CPU overhead | page faults/step "
        "| bytes/rollout |\n|---|---|---|---|---|---|---|"
    )
    for name, values in seconds.items():
        wall, cpu, faults = np.median(values, axis=0)
        costs = " | ".join(overhead(values[:, i], seconds["plain"][:, i]) for i in (0, 1))
        size = f"{faults:.0f} | {kept[name] / rollouts:.0f}"
        print(f"| {name} | {wall:.3f} | {cpu:.3f} | {costs} | {size} |")
    if ALARMED in seconds:
        wall, cpu, _ = seconds[ALARMED].sum(axis=0) / seconds["flatline"].sum(axis=0)
        print(f"\nAll steps with alarms over all without: wall {wall:.3f}, CPU {cpu:.3f}")


def overhead(values: np.ndarray, plain: np.ndarray) -> str:
    """Median over steps of what is added, with its standard error."""
    share = values / plain - 1
    spread = 1.48 * np.median(np.abs(share - np.median(share)))  # a busy machine makes outliers
    error = 1.25 * spread / np.sqrt(len(share))
    return f"{np.median(share):+.1%} ± {error:.1%}"


if __name__ == "__main__":
    main()
