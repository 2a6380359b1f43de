"""A trace of a million rollouts and fifty million tokens: how long and how large questions are.

    python benchmarks/trace_scale.py [--rollouts 1000000] [--tokens 50] [--keep DIR]

Every question is asked in a fresh process, so that its time and peak memory are its own. The goal
is "reward by step and hop" in under 2 seconds and under 1 GB, imports included. CPU seconds are
told apart, because a shared machine makes the clock run longer.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from flatline.trace import Trace
from flatline.trace.files import FileName, StreamFile, compact
from flatline.trace.folder import write_run
from flatline.trace.schema import TABLES

PER_STEP = 512
BY_HOP = "SELECT step, hops, avg(reward) r FROM rollouts GROUP BY step, hops ORDER BY step, hops"
QUESTIONS = {
    "reward by step and hop, SQL": lambda trace: trace.query(BY_HOP).num_rows,
    "mean reward, numpy": lambda trace: float(trace.rollouts["reward"].mean()),
    "zero-variance groups": lambda trace: sum(
        np.ptp(g) == 0 for g in trace.groups().each("reward")
    ),
    "token detail of one step": lambda trace: float(trace.tokens(steps=[7]).sampler.mean()),
    "log-prob gap of all tokens, SQL": lambda trace: trace.query(
        "SELECT avg(abs(sampler - trainer)) gap FROM tokens WHERE author = 1"
    ).to_pylist()[0]["gap"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=50, help="of every rollout")
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
            _make(path, options.rollouts, options.tokens)
        for question in QUESTIONS:
            _ask(path, question)


def _make(path: Path, rollouts: int, tokens: int) -> None:
    start = time.perf_counter()
    path.mkdir(exist_ok=True, parents=True)
    write_run(path, {"schema": 1, "source": "benchmark", "settings": {}})
    names = {table: FileName(table, 0, 0) for table in ("steps", "rollouts", "tokens")}
    files = {t: StreamFile(path / f"{name}.arrow", t) for t, name in names.items()}
    for step in range(1, -(-rollouts // PER_STEP) + 1):
        count = min(PER_STEP, rollouts - (step - 1) * PER_STEP)
        for table, batch in _step(step, count, tokens):
            files[table].append(batch)
    written = time.perf_counter() - start
    for table, file in files.items():
        file.flush()
        file.close()
        compact(file.path, names[table], print)
    size = sum(file.stat().st_size for file in path.iterdir()) / 2**20
    print(f"{rollouts:,} rollouts, {rollouts * tokens:,} tokens: written in {written:.0f} s,")
    print(
        f"  compacted in {time.perf_counter() - start - written:.0f} s to {size:,.0f} MB;", end=" "
    )
    print(f"peak memory {_peak():,.0f} MB")


def _step(step: int, count: int, tokens: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    rng = np.random.default_rng(step)
    reward = rng.random(count).round(2)
    places = {"step": np.full(count, step), "rank": np.zeros(count), "rollout": np.arange(count)}
    yield "steps", _batch("steps", {"step": [step], "reward": [reward.mean()]})
    scalars = {
        "group": np.arange(count) // 8,
        "prompt_id": [f"problem-{(step * 64 + i // 8) % 20000}" for i in range(count)],
        "hops": 2 + (np.arange(count) // 8) % 3,
        "reward": reward,
        "advantage": reward - reward.mean(),
        "weight_version": np.full(count, step - 1),
        "completion_tokens": np.full(count, tokens),
        "completion": [f"<answer>{value}</answer>" for value in reward],
    }
    yield "rollouts", _batch("rollouts", places | scalars)
    size = count * tokens
    sampler = -rng.exponential(0.5, size).astype(np.float32)
    flat = {
        "ids": rng.integers(0, 50_000, size, dtype=np.int32),
        "author": np.tile(np.where(np.arange(tokens) % 10 < 7, 1, 2), count),
        "trained": np.tile(np.arange(tokens) % 10 < 7, count),
        "attended": np.ones(size),
        "sampler": sampler,
        "trainer": sampler + rng.normal(0, 1e-3, size).astype(np.float32),
    }
    offsets = pa.array(np.arange(0, size + 1, tokens, dtype=np.int32))
    lists = {
        name: pa.ListArray.from_arrays(
            offsets, pa.array(values).cast(TABLES["tokens"].field(name).type.value_type)
        )
        for name, values in flat.items()
    }
    yield "tokens", _batch("tokens", places | lists)


def _batch(table: str, columns: dict[str, object]) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))  # type: ignore[arg-type]
    arrays = [
        pa.array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in TABLES[table]
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TABLES[table])


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
