"""What a bad disk costs the training, and whether memory stays flat.

    python benchmarks/reliability/stalls.py [--steps 2000]

1. The same loop on a disk that is slow, that stalls for a while and that never answers: the time
   that each step waits for the recorder, and the wait when the run ends.
2. The hooks of `attach` on a pretended trainer, thousands of steps with new tokens in each: the
   memory of the process at every tenth of the run, and its slope with a 95 % interval over tenths.
"""

import argparse
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent))

import numpy as np
import psutil
from pretended import Pretended

from flatline.live.trl.recorder.attach import attach
from flatline.stats import LEVEL, t_score
from flatline.trace import Trace, writer
from flatline.trace.files import StreamFile
from flatline.trace.writer import Writer

STEPS, TRAINING = 40, 0.05
"""Steps of a loop, and seconds that each of them trains."""
WARM = 0.2
"""Share of the steps before memory counts: caches fill and allocators settle."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    writer.CLOSE_WAIT = 5.0  # not a minute, for the one that never answers
    print("| disk | added to a step: median | worst | at the end | steps recorded |")
    print("|---|---|---|---|---|")
    for name, wait in DISKS.items():
        with tempfile.TemporaryDirectory() as scratch:
            print(f"| {name} | " + " | ".join(_stalled(Path(scratch), wait())) + " |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        _flat(Path(scratch), given.steps)


def _slow(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def _stalling() -> Callable[[], None]:
    """Once, for five seconds."""
    once = [5.0]
    return lambda: time.sleep(once.pop() if once else 0.0)


def _hanging() -> Callable[[], None]:
    never = threading.Event()

    def wait() -> None:
        never.wait()

    return wait


DISKS: dict[str, Callable[[], Callable[[], None]]] = {
    "good": lambda: _slow(0.0),
    "20 ms a write": lambda: _slow(0.02),
    "300 ms a write": lambda: _slow(0.3),
    "stalls once for 5 s": _stalling,
    "never answers": _hanging,
}


def _stalled(folder: Path, wait: Callable[[], None]) -> list[str]:
    append = StreamFile.append
    StreamFile.append = lambda self, batch: (wait(), append(self, batch))[1]  # type: ignore
    try:
        sink = Writer(folder)
        waits = [_step(sink, step) for step in range(1, STEPS + 1)]
        start = time.perf_counter()
        sink.close()
        end = time.perf_counter() - start
    finally:
        StreamFile.append = append  # type: ignore[method-assign]
    kept = len(Trace.open(folder).steps)
    return [
        f"{np.median(waits):.3f} s",
        f"{max(waits):.2f} s",
        f"{end:.1f} s",
        f"{kept} of {STEPS}",
    ]


def _step(sink: Writer, step: int) -> float:
    """Seconds that the training waits for the recorder."""
    time.sleep(TRAINING)
    start = time.perf_counter()
    places = [{"step": step, "rank": 0, "rollout": i} for i in range(8)]
    sink.write("rollouts", [{**place, "reward": 1.0} for place in places])
    sink.write("tokens", [{**place, "ids": np.arange(500)} for place in places])
    sink.write("steps", [{"step": step, "reward": 1.0}])
    sink.end_step()
    return time.perf_counter() - start


def _flat(folder: Path, steps: int) -> None:
    trainer = Pretended()
    trainer.model.train()
    attachment = attach(trainer, folder / "run")
    trainer.say("on_train_begin")
    at, memory, process = [], [], psutil.Process()
    for number in range(1, steps + 1):
        trainer.step()
        if number % max(1, steps // 50) == 0:
            gc.collect()
            at.append(number)
            memory.append(process.memory_info().rss / 2**20)
    trainer.say("on_train_end")
    assert not attachment.failed and len(Trace.open(folder / "run").steps) == steps
    late = [i for i, number in enumerate(at) if number > WARM * steps]
    line, spread = np.polyfit(np.array(at)[late] / 1000, np.array(memory)[late], 1, cov=True)
    slope, margin = line[0], t_score(len(late) - 2, LEVEL) * spread[0, 0] ** 0.5
    tenths = ", ".join(f"{memory[i]:.0f}" for i in range(4, len(memory), 5))
    print(f"\nMemory at each tenth of {steps} recorded steps, MiB: {tenths}.")
    low, high = slope - margin, slope + margin
    print(f"Slope: {slope:+.2f} [{low:+.2f}, {high:+.2f}] MiB per 1,000 steps.")


if __name__ == "__main__":
    main()
