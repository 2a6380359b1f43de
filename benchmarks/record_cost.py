"""What recording a large run would cost: bytes, seconds and the share of a step, by simulation.

    python benchmarks/record_cost.py [--gpus 1000] [--rollouts 8] [--tokens 4096] [--steps 1000]
        [--step-seconds 120]

One process of that run is real: flatline's own `Writer` records steps of that shape, and is timed.
All of its processes are real as files: each writes a small trace into one folder, and that folder
is then read. The rest is multiplication, and is said to be. Not in it: the recorder's hooks in the
trainer (benchmarks/recorder.py measures them), and a file system that is shared over a network.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from trace_scale import rows_of

from flatline.diagnosis.report import diagnose
from flatline.trace import Trace
from flatline.trace.writer import Writer

MEASURED = 6
"""Steps that one process really writes; the first is left out."""
PROMPT, TEXT = 512, "text"
"""Tokens of a prompt, and four letters for each token."""
PROMPT_IDS = np.arange(PROMPT, dtype=np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000, help="one process each")
    parser.add_argument("--rollouts", type=int, default=8, help="of a process and step")
    parser.add_argument("--tokens", type=int, default=4096, help="of a rollout")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step-seconds", type=float, default=120)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one_process(asked, Path(folder) / "one")
        all_files(asked, Path(folder) / "all")


def one_process(asked: argparse.Namespace, folder: Path) -> None:
    writer = Writer(folder, run={"settings": {}})
    used = [
        write_step(writer, step, asked.rollouts, asked.tokens) for step in range(1, MEASURED + 1)
    ]
    written = _size(folder)
    start = time.process_time()
    writer.close()
    closing, kept = time.process_time() - start, _size(folder)
    held, cpu = np.median(used[1:], axis=0)
    written, kept, closing = written / len(used), kept / len(used), closing / len(used)
    whole, rate = asked.gpus * asked.steps, asked.gpus / asked.step_seconds
    print(f"One process, a step ({asked.rollouts} rollouts of {asked.tokens:,} tokens), measured:")
    print(f"  {written / 1e6:.2f} MB while the run writes, {kept / 1e6:.2f} MB once it has ended")
    print(f"  the training waits {1e3 * held:.0f} ms for it; {1e3 * cpu:.0f} ms of CPU time")
    print(f"{asked.gpus:,} processes, {asked.steps:,} steps, multiplied:")
    print(f"  {whole * kept / 1e12:.2f} TB kept ({whole * written / 1e12:.2f} TB while it writes),")
    print(f"  {rate * written / 1e6:.1f} MB a second to the file system")
    print(f"  {held / asked.step_seconds:.3%} of a step of {asked.step_seconds:g} s;", end=" ")
    print(f"{closing * asked.steps:.0f} s of CPU time in each process when the run ends")


def write_step(writer: Writer, step: int, rollouts: int, tokens: int) -> tuple[float, float]:
    """How long the training waited, and CPU seconds of all threads."""
    rows = dict(rows_of(step, 0, range(rollouts), tokens))
    for rollout, detail in zip(rows["rollouts"], rows["tokens"], strict=True):
        rollout |= {"prompt": TEXT * PROMPT, "completion": TEXT * tokens}
        detail |= {"prompt_ids": PROMPT_IDS, "prompt_attended": np.ones(PROMPT, np.uint8)}
        detail |= dict.fromkeys(("old", "reference", "weight"), detail["trainer"] + step)
    start, used = time.perf_counter(), _cpu()
    for table, found in rows.items():
        writer.write(table, found)
    writer.end_step()
    return time.perf_counter() - start, _cpu() - used


def all_files(asked: argparse.Namespace, folder: Path) -> None:
    for rank in range(asked.gpus):
        writer = Writer(folder, rank=rank, run={"settings": {}})
        for step in (1, 2):
            first = rank * asked.rollouts
            for table, rows in rows_of(step, rank, range(first, first + asked.rollouts), 16):
                writer.write(table, rows)
            writer.end_step()
        writer.close()
    print(f"A folder of {asked.gpus:,} writers ({len(list(folder.iterdir())):,} files), measured:")
    for name, ask in {
        "opened, mean reward": lambda trace: trace.rollouts["reward"].mean(),
        "diagnosed": diagnose,
    }.items():
        start, used = time.perf_counter(), _cpu()
        ask(Trace.open(folder))
        print(f"  {name}: {time.perf_counter() - start:.1f} s ({_cpu() - used:.1f} s CPU)")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


if __name__ == "__main__":
    main()
