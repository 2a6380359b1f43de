"""What each planted fault does to a run of the lab policy: how much held-out reward it costs.

    python benchmarks/faults.py                                  every fault, seed 0, 1 and 2
    python benchmarks/faults.py --faults parser-broken,kl-sign:3 --seeds 0 --jobs 8

Each run is a process of its own with one thread and has the folder OUT/NAME-sSEED; a run whose
folder holds a result is not run again. Prints a Markdown table and writes OUT/faults.json.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatline.config import RunConfig
from flatline.files import write_atomically
from flatline.stats import paired_difference

HEALTHY = "healthy"
RESULT = "result.json"
LAST_STEPS = 5
"""Steps at the end that KL, gradient norm and log-prob gap are averaged over."""
HEADER = (
    "| run | hypothesis | seeds | held-out before | after | lost against healthy (95 % interval) "
    "| least and most of a seed | training reward: first, last | KL | gradient norm "
    "| log-prob gap |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    args = _arguments()
    if args.one:
        run_one(args)
        return 0
    names = [HEALTHY, *(args.faults.split(",") if args.faults else all_names())]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    run_all(args, [(name, seed) for seed in seeds for name in names])
    rows = [row for name in names if (row := summary(args.out, name, seeds))]
    print(HEADER)
    for row in rows:
        print(as_markdown(row))
    write_atomically(args.out / "faults.json", [json.dumps(rows, indent=2)])
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", help="names (with :strength) joined with commas; all if absent")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--eval-limit", type=int, default=256)
    parser.add_argument("--beta", type=float, default=0.04, help="weight of the KL, healthy too")
    parser.add_argument("--task", default="musique")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/faults"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def all_names() -> list[str]:
    from flatline.faults import FAULTS, PRESETS

    return [*(fault.name for fault in FAULTS), *PRESETS]


# -- running ----------------------------------------------------------------------------------


def run_all(args: argparse.Namespace, runs: Sequence[tuple[str, int]]) -> None:
    todo = [run for run in runs if not (folder(args.out, *run) / RESULT).is_file()]
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = {pool.submit(_start, args, *run): run for run in todo}
        for done, job in enumerate(as_completed(jobs), 1):
            name, seed = jobs[job]
            ended = "done" if job.result() == 0 else "FAILED, see log.txt"
            print(f"{done}/{len(todo)} {name} seed {seed}: {ended}", file=sys.stderr, flush=True)


def _start(args: argparse.Namespace, name: str, seed: int) -> int:
    where = folder(args.out, name, seed)
    where.mkdir(parents=True, exist_ok=True)
    shared = ("steps", "eval_limit", "beta", "task", "out")
    options = [f"--{key.replace('_', '-')}={getattr(args, key)}" for key in shared]
    command = [sys.executable, __file__, f"--one={name}", f"--seeds={seed}", *options]
    with (where / "log.txt").open("w") as log:
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            command, stdout=log, stderr=log, env=one_thread, check=False
        ).returncode


def run_one(args: argparse.Namespace) -> None:
    import torch

    from flatline.training.run import train

    torch.set_num_threads(1)
    name, seed = args.one, int(args.seeds)
    where = folder(args.out, name, seed)
    config = RunConfig(
        task=args.task,
        kl_beta=args.beta,
        max_steps=args.steps,
        eval_limit=args.eval_limit,
        seed=seed,
        output_dir=str(where),
    )
    result = train(replace(config, fault=None if name == HEALTHY else name))
    first, last = result.scores[0], result.scores[-1]
    facts = {
        "seconds": result.seconds,
        "problems": last.problems,
        "before": first.rewards,
        "after": last.rewards,
        "log": [_numbers(line) for line in result.log if "grad_norm" in line],
    }
    write_atomically(where / RESULT, [json.dumps(facts)])


def folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name.replace(':', '=')}-s{seed}"


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    """What the table shows; the many adapter metrics are left out."""
    return {key: float(value) for key, value in line.items() if not key.startswith("lora/")}


# -- the table --------------------------------------------------------------------------------


def summary(out: Path, name: str, seeds: Sequence[int]) -> dict[str, Any] | None:
    """One row: the seeds that have finished, each against the healthy run of the same seed."""
    runs = {seed: found for seed in seeds if (found := _read(out, name, seed))}
    if not runs:
        return None
    pairs = {seed: both for seed in runs if (both := _read(out, HEALTHY, seed))}
    return {
        "run": name,
        "hypothesis": _hypotheses(name),
        "seeds": sorted(runs),
        "before": _mean([x for run in runs.values() for x in run["before"]]),
        "after": _mean([x for run in runs.values() for x in run["after"]]),
        "lost": _lost(pairs, runs),
        "lost_by_seed": {
            seed: _mean(pairs[seed]["after"]) - _mean(runs[seed]["after"]) for seed in pairs
        },
        "train_first": _logged(runs, "reward", slice(None, LAST_STEPS)),
        "train_last": _logged(runs, "reward", slice(-LAST_STEPS, None)),
        "kl": _logged(runs, "kl", slice(-LAST_STEPS, None)),
        "grad_norm": _logged(runs, "grad_norm", slice(-LAST_STEPS, None)),
        "gap": _logged(runs, "debug/logprob_gap_mean", slice(-LAST_STEPS, None)),
        "seconds": _mean([run["seconds"] for run in runs.values()]),
    }


def _lost(healthy: dict[int, Any], runs: dict[int, Any]) -> dict[str, Any] | None:
    """Held-out reward of healthy minus faulty, paired play by play; problems are the clusters."""
    if not healthy:
        return None
    good = [x for seed in healthy for x in healthy[seed]["after"]]
    bad = [x for seed in healthy for x in runs[seed]["after"]]
    problems = [id for seed in healthy for id in healthy[seed]["problems"]]
    return paired_difference(bad, good, problems, bounds=(0.0, max(1.0, *good, *bad))).to_json()


def _hypotheses(name: str) -> str:
    if name == HEALTHY:
        return ""
    from flatline.faults import find

    return " ".join(sorted({fault.hypothesis for fault, _ in find(name)}))


def _read(out: Path, name: str, seed: int) -> dict[str, Any] | None:
    path = folder(out, name, seed) / RESULT
    return json.loads(path.read_text()) if path.is_file() else None


def _logged(runs: dict[int, Any], name: str, lines: slice) -> float | None:
    values = [line[name] for run in runs.values() for line in run["log"][lines] if name in line]
    return _mean(values) if values else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def as_markdown(row: dict[str, Any]) -> str:
    lost, by_seed = row["lost"], row["lost_by_seed"].values()
    shown = "" if not lost else f"{lost['value']:+.3f} [{lost['low']:+.3f}, {lost['high']:+.3f}]"
    span = f"{min(by_seed):+.3f}, {max(by_seed):+.3f}" if by_seed else ""
    numbers = " | ".join(
        "" if row[key] is None else f"{row[key]:.2g}" for key in ("kl", "grad_norm", "gap")
    )
    return (
        f"| {row['run']} | {row['hypothesis']} | {len(row['seeds'])} | {row['before']:.3f} "
        f"| {row['after']:.3f} | {shown} | {span} "
        f"| {row['train_first']:.3f}, {row['train_last']:.3f} | {numbers} |"
    )


if __name__ == "__main__":
    sys.exit(main())
