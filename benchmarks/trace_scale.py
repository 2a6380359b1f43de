"""A trace of a hundred million tokens by 64 writers: how long and how large questions are.

    python benchmarks/trace_scale.py [--rollouts 1000000] [--tokens 100] [--writers 64] [--keep DIR]

Every question is asked in a fresh process, so that its time and peak memory are its own. The goal
is "reward by step and hop" in under 2 seconds and under 1 GB, imports included. CPU seconds are
told apart, because a shared machine makes the clock run longer.
"""

import argparse
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flatline.diagnosis.report import diagnose
from flatline.trace import Trace
from flatline.trace.writer import Writer

PER_STEP = 8192
"""Rollouts of a step, of all writers together."""
BY_HOP = "SELECT step, hops, avg(reward) r FROM rollouts GROUP BY step, hops ORDER BY step, hops"
QUESTIONS = {
    "reward by step and hop, SQL": lambda trace: trace.query(BY_HOP).num_rows,
    "mean reward, numpy": lambda trace: float(trace.rollouts["reward"].mean()),
    "zero-variance groups": lambda trace: sum(
        np.ptp(g) == 0 for g in trace.groups().each("reward")
    ),
    "token detail of one step": lambda trace: float(trace.tokens(steps=[1]).sampler.mean()),
    "log-prob gap of all tokens, SQL": lambda trace: trace.query(
        "SELECT avg(abs(sampler - trainer)) gap FROM tokens WHERE author = 1"
    ).to_pylist()[0]["gap"],
    "diagnosis": lambda trace: len(diagnose(trace).findings),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=100, help="of every rollout")
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument(
        "--keep", type=Path, help="make the trace here, or use the one that is there"
    )
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        _answer(options.keep, options.ask)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder)
        if not (path / "run.json").exists():
            _make(path, options.rollouts, options.tokens, options.writers)
        for question in QUESTIONS:
            _ask(path, question)


def _make(path: Path, rollouts: int, tokens: int, writers: int) -> None:
    """Every writer is a process of its own with flatline's own `Writer`, all of them at once."""
    start = time.perf_counter()
    share = PER_STEP // writers
    steps = -(-rollouts // (share * writers))
    forked = multiprocessing.get_context("fork")
    begun = [
        forked.Process(target=_write, args=(path, rank, steps, share, tokens))
        for rank in range(writers)
    ]
    for one in begun:
        one.start()
    for one in begun:
        one.join()
    if any(one.exitcode for one in begun):
        raise SystemExit("a writer failed")
    written = steps * share * writers
    size = sum(file.stat().st_size for file in path.iterdir())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(f"{written:,} rollouts, {written * tokens:,} tokens, {steps:,} steps, {writers} writers:")
    print(
        f"  made, written and compacted in {time.perf_counter() - start:.0f} s"
        f" ({cpu:.0f} s CPU) to {size / 2**20:,.0f} MB, {size / written / tokens:.1f} bytes a token"
    )


def _write(path: Path, rank: int, steps: int, rollouts: int, tokens: int) -> None:
    run = {"source": "benchmark", "settings": {}}
    writer = Writer(path, rank=rank, run=run, beside=False)
    first = rank * rollouts
    for step in range(1, steps + 1):
        for table, rows in rows_of(step, rank, range(first, first + rollouts), tokens):
            writer.write(table, rows)
        writer.end_step()
    writer.close()


def rows_of(
    step: int, rank: int, which: range, tokens: int
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What one process records of a step. Random numbers do not compress: a real run is smaller."""
    rng = np.random.default_rng((step, rank))
    places = [{"step": step, "rank": rank, "rollout": rollout} for rollout in which]
    rewards = rng.random(len(which)).round(2).tolist()
    yield (
        "rollouts",
        [
            place | _rollout(step, place["rollout"], reward, tokens)
            for place, reward in zip(places, rewards, strict=True)
        ],
    )
    model_wrote = np.arange(tokens) % 10 < 7
    same = {
        "author": np.where(model_wrote, 1, 2).astype(np.uint8),
        "trained": model_wrote.astype(np.uint8),
        "attended": np.ones(tokens, np.uint8),
    }
    yield "tokens", [place | same | _tokens(rng, tokens) for place in places]
    if rank == 0:
        yield "steps", [{"step": step, "reward": float(np.mean(rewards))}]


def _rollout(step: int, rollout: int, reward: float, tokens: int) -> dict[str, Any]:
    group = rollout // 8
    return {
        "group": group,
        "prompt_id": f"problem-{(step * PER_STEP + group) % 20000}",
        "hops": 2 + group % 3,
        "reward": reward,
        "advantage": reward - 0.5,
        "weight_version": step - 1,
        "completion_tokens": tokens,
        "completion": f"<answer>{reward}</answer>",
    }


def _tokens(rng: np.random.Generator, tokens: int) -> dict[str, Any]:
    sampler = -rng.exponential(0.5, tokens).astype(np.float32)
    return {
        "ids": rng.integers(0, 50_000, tokens, dtype=np.int32),
        "sampler": sampler,
        "trainer": sampler + rng.normal(0, 1e-3, tokens).astype(np.float32),
    }


def _ask(path: Path, question: str) -> None:
    command = [sys.executable, __file__, "--keep", str(path), "--ask", question]
    start = time.perf_counter()
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    whole = time.perf_counter() - start
    told = json.loads(found.stdout)
    print(
        f"{question:32} {told['seconds']:6.2f} s; with start and imports {whole:6.2f} s, of which"
        f" {told['cpu']:5.2f} s CPU; peak {told['peak']:6,.0f} MB"
    )


def _answer(path: Path, question: str) -> None:
    start = time.perf_counter()
    trace = Trace.open(path)
    QUESTIONS[question](trace)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "cpu": time.process_time(), "peak": _peak()}))


def _peak() -> float:
    """MB. Not `getrusage`, where a child begins with the peak of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10


if __name__ == "__main__":
    main()
