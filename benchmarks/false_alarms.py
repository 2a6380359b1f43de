"""Healthy runs of many kinds: does any of them set off an alarm?

    python benchmarks/false_alarms.py [--jobs 2] [--steps 30] [--out runs/healthy]

Trains every setup (a process of its own, one thread; a finished run is not run again), then asks
diagnose about its trace and checkup about its trainer. Prints what each learnt, every alarm, and
the count of alarming setups with its interval. A setup that does not learn is not healthy and is
left out.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from flatline.config import RunConfig
from flatline.files import write_atomically
from flatline.stats import cluster_mean

RESULT, REPORTS = "result.json", "reports.json"
SETUPS: dict[str, dict[str, Any]] = {
    "lora": {"seed": 10},
    "lora-beta": {"kl_beta": 0.04, "seed": 11},
    "full": {"peft": False, "seed": 12},
    "full-beta": {"peft": False, "kl_beta": 0.04, "seed": 13},
    "dr-grpo": {"loss_type": "dr_grpo", "seed": 14},
    "bnpo": {"loss_type": "bnpo", "seed": 15},
    "dapo-full": {"loss_type": "dapo", "peft": False, "seed": 16},
    "groups-of-4": {"num_generations": 4, "seed": 17},
    "groups-of-16": {"num_generations": 16, "seed": 18},
    "small-steps": {"batch_size": 32, "seed": 19},
    "accumulated": {"batch_size": 16, "gradient_accumulation_steps": 4, "seed": 20},
    "cool": {"temperature": 0.7, "seed": 21},
    "warm": {"temperature": 1.2, "seed": 22},
    "slow-rate": {"learning_rate": 1e-3, "seed": 23},
    "fast-rate": {"learning_rate": 5e-3, "seed": 24},
    "rank-2": {"lora_r": 2, "lora_alpha": 4, "seed": 25},
    "rank-32": {"lora_r": 32, "lora_alpha": 64, "learning_rate": 2e-3, "seed": 26},
    "two-passes": {"num_iterations": 2, "learning_rate": 2e-3, "seed": 27},
    "unscaled": {"scale_rewards": "none", "seed": 28},
    "batch-scaled": {"scale_rewards": "batch", "kl_beta": 0.02, "seed": 29},
    "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 3, "seed": 30},
    "golden": {"retriever": "golden", "seed": 31},
    "toolmath": {"task": "toolmath", "seed": 32},
    "toolmath-full-beta": {"task": "toolmath", "peft": False, "kl_beta": 0.04, "seed": 33},
    "gsm8k": {"task": "gsm8k", "learning_rate": 1e-3, "seed": 34},
    "gsm8k-full": {"task": "gsm8k", "peft": False, "learning_rate": 3e-4, "seed": 35},
}
"""What a user might well train with, and learn."""


def main() -> int:
    args = _arguments()
    if args.one:
        run_one(args, args.one)
        return 0
    names = args.setups.split(",") if args.setups else list(SETUPS)
    for stage in ("train", *(() if args.train_only else ("look",))):
        _all(args, names, stage)
    if not args.train_only:
        print_table(args.out, names)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setups", help="names joined with commas; all if absent")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/healthy"))
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    return parser.parse_args()


def config_of(name: str, steps: int, out: Path) -> RunConfig:
    """The run of a setup; passes over the same completions count as steps, so they get more."""
    changes = SETUPS[name]
    steps *= changes.get("num_iterations", 1)
    return RunConfig(max_steps=steps, output_dir=str(out / name), **changes)


def _all(args: argparse.Namespace, names: Sequence[str], stage: str) -> None:
    made = RESULT if stage == "train" else REPORTS
    todo = [name for name in names if not (args.out / name / made).is_file()]
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = {pool.submit(_start, args, name, stage): name for name in todo}
        for done, job in enumerate(as_completed(jobs), 1):
            ended = "done" if job.result() == 0 else f"FAILED, see {stage}.txt"
            print(f"{stage} {done}/{len(todo)} {jobs[job]}: {ended}", file=sys.stderr, flush=True)


def _start(args: argparse.Namespace, name: str, stage: str) -> int:
    where = args.out / name
    where.mkdir(parents=True, exist_ok=True)
    options = [f"--one={name}", f"--stage={stage}", f"--steps={args.steps}", f"--out={args.out}"]
    with (where / f"{stage}.txt").open("w") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, *options]
        return subprocess.run(
            command, stdout=log, stderr=log, env=environment, check=False
        ).returncode


def run_one(args: argparse.Namespace, name: str) -> None:
    import torch

    torch.set_num_threads(1)
    config = config_of(name, args.steps, args.out)
    if args.stage == "train":
        _train(config)
    else:
        _look(config)


def _train(config: RunConfig) -> None:
    from flatline.training.run import train

    result = train(config)
    assert result.gain is not None
    facts = {
        "before": result.scores[0].reward.value,
        "after": result.scores[-1].reward.value,
        "gain": result.gain.to_json(),
        "seconds": result.seconds,
    }
    write_atomically(Path(config.output_dir) / RESULT, [json.dumps(facts)])


def _look(config: RunConfig) -> None:
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from flatline.diagnosis import diagnose
    from flatline.examination import checkup
    from flatline.trace import Trace
    from flatline.training.trainer import build

    folder = Path(config.output_dir)
    reports = {"diagnose": diagnose(Trace.open(folder)).to_json()}
    with TemporaryDirectory() as scratch:
        reports["checkup"] = checkup(build(replace(config, output_dir=scratch))).to_json()
    write_atomically(folder / REPORTS, [json.dumps(reports)])


def print_table(out: Path, names: Sequence[str]) -> None:
    print(
        "| setup | held-out before | after | gain | checkup | diagnose |\n|---|---|---|---|---|---|"
    )
    alarming = []
    for name in names:
        result, reports = (_read(out / name / file) for file in (RESULT, REPORTS))
        if result is None or reports is None:
            print(f"| {name} | | | not finished | | |")
            continue
        gain = result["gain"]
        found = {kind: _alarms(report) for kind, report in reports.items()}
        learnt = gain["low"] > 0
        if learnt:
            alarming.append(float(any(found.values())))
        shown = f"{gain['value']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
        mark = "" if learnt else " (did not learn: left out)"
        print(
            f"| {name} | {result['before']:.3f} | {result['after']:.3f} | {shown}{mark} "
            f"| {found['checkup'] or 'nothing'} | {found['diagnose'] or 'nothing'} |"
        )
    rate = cluster_mean(alarming, range(len(alarming)))
    print(f"\nHealthy setups with an alarm: {int(sum(alarming))} of {len(alarming)}, {rate}")


def _alarms(report: dict[str, Any]) -> str:
    alarms = [f for f in report["findings"] if f["level"] in ("fault", "suspect")]
    return ", ".join(f"{f['hypothesis']} ({f['level']})" for f in alarms)


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
