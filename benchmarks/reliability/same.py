"""Same seed, same machine: which bytes of a run differ, and does the number of workers matter?

    python benchmarks/reliability/same.py

Two trainings of one config in two folders: every column of every table is compared byte by byte.
Then held-out problems played by one worker and shared among two and three, and one investigation
with one, two and four runs at once; and how often a sum depends on the number of threads.
"""

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parent.parent.parent))

import pyarrow as pa
from processes import done_by
from works_runs import Investigate

from flatline.config import RunConfig
from flatline.trace import Trace
from flatline.trace.schema import TABLES

SMALL = RunConfig(
    datasets="lab,,train[:24]",
    eval_datasets="lab,,validation[:12]",
    batch_size=16,
    num_generations=4,
    max_steps=2,
    max_new_tokens=64,
)
TIMED = ("time", "seconds", "runtime", "per_second")
"""What the name of a column, metric or fact of run.json has in it if it is about time."""
OF_THE_FOLDER = ("output_dir", "created", "ended", "run_name", "logging_dir")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bad = [*_trainings(folder), *_workers(folder), *_jobs(folder)]
    _threads()
    for line in bad:
        print(f"DIFFERS: {line}")
    sys.exit(bool(bad))


def _trainings(folder: Path) -> list[str]:
    from flatline.training.run import train

    for name in ("a", "b"):
        train(replace(SMALL, output_dir=str(folder / name)))
    differing, bad, total = compared(folder / "a", folder / "b")
    print(f"{total} columns, metrics and facts of two runs; of time and place: {differing}.")
    scores = {(folder / name / "heldout.jsonl").read_bytes() for name in ("a", "b")}
    print(f"heldout.jsonl: {'the same bytes' if len(scores) == 1 else 'other bytes'}.")
    return bad + ["heldout.jsonl"] * (len(scores) - 1)


def compared(a: Path, b: Path) -> tuple[list[str], list[str], int]:
    """What differs and may, what differs and may not, and how much was compared."""
    one, two = facts(a), facts(b)
    differing = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    allowed = [n for n in differing if any(word in n for word in (*TIMED, *OF_THE_FOLDER))]
    return allowed, sorted(set(differing) - set(allowed)), len(one)


def facts(folder: Path) -> dict[str, Any]:
    """Every column as bytes, every metric, and every fact of run.json by its dotted name."""
    trace, found = Trace.open(folder), {}
    for table in TABLES:
        rows = trace.tables[table].to_table()
        for name in rows.column_names:
            if name != "metrics":
                found[f"{table}.{name}"] = _bytes(rows.column(name))
    for row in trace.tables["steps"].to_table().to_pylist():
        for name, value in row["metrics"] or ():
            found[f"steps.metrics[{row['step']}].{name}"] = value
    return found | _flat(trace.run, "run.json")


def _bytes(column: pa.ChunkedArray) -> bytes:
    """As written into a file; a slice of a larger array would bring its neighbours."""
    sink = pa.BufferOutputStream()
    table = pa.table({"x": pa.concat_arrays([pa.array(column.to_pylist(), column.type)])})
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return bytes(sink.getvalue())


def _flat(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{name}.{key}").items()}


def _workers(folder: Path) -> list[str]:
    """As `HeldOut` shares the problems among processes."""
    from flatline.rollout.engine import Job
    from flatline.training.trainer import build

    built = build(replace(SMALL, output_dir=str(folder / "c")))
    jobs = [Job(problem, sample) for problem in built.heldout for sample in range(2)]
    seen = {}
    with built.rollouts.playing(built.trainer) as engine:
        for workers in (1, 2, 3):
            shares = [jobs[rank::workers] for rank in range(workers)]
            played = [one for share in shares for one in engine.play(share, seed=0)]
            seen[workers] = sorted(
                (one.problem_id, one.sample, tuple(one.completion_ids), one.score.reward)
                for one in played
            )
    same = seen[1] == seen[2] == seen[3]
    print(f"{len(jobs)} held-out plays by 1, 2 and 3 workers: {'the same' if same else 'other'}.")
    return [] if same else ["held-out plays"]


def _threads() -> None:
    """Why the number of threads must not depend on the number of workers."""
    import torch

    differ = 0
    for seed in range(20):
        numbers = torch.randn(1_000_000, generator=torch.Generator().manual_seed(seed))
        sums = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            sums.add(numbers.sum().item())
        differ += len(sums) > 1
    print(f"Sums of a million numbers that differ between 1 and 2 threads: {differ} of 20.")


def _jobs(folder: Path) -> list[str]:
    work = Investigate()
    made = done_by(lambda: work.rehearse(folder), folder / "said", seconds=120)
    verdict, work.traces = json.loads(made.lines[0]), folder / "traces"
    bad = []
    for jobs in (1, 4):
        at = folder / f"jobs-{jobs}"
        at.mkdir()
        done_by(lambda at=at: work.prepare(at), folder / "said", seconds=60)
        child = done_by(
            lambda at=at, jobs=jobs: work.investigate(at, jobs=jobs), folder / "said", seconds=200
        )
        found = json.loads("\n".join(child.lines))
        bad += [] if found == verdict else [f"the verdict with {jobs} jobs"]
    print(f"One investigation with 1, 2 and 4 jobs: {'one verdict' if not bad else 'others'}.")
    return bad


if __name__ == "__main__":
    main()
